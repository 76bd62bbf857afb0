"""Makes git repositories of the suite's sources, with the same commits on every machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ..errors import SwebenchError

SUITE_FILE = Path(__file__).with_name("instances.json")
REPOSITORIES = Path(__file__).with_name("repositories")
DATE = "2025-01-01T00:00:00+0000"
# A commit's hash depends on who made it and when, and nothing of a machine's settings applies.
_GIT_ENVIRONMENT = {
    "PATH": os.defpath + os.pathsep + "/usr/local/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "agentkv",
    "GIT_AUTHOR_EMAIL": "agentkv@localhost",
    "GIT_AUTHOR_DATE": DATE,
    "GIT_COMMITTER_NAME": "agentkv",
    "GIT_COMMITTER_EMAIL": "agentkv@localhost",
    "GIT_COMMITTER_DATE": DATE,
}
# What running the tests in place leaves behind.
_NOT_SOURCES = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")


def prepare(folder: Path) -> dict[str, Path]:
    """The git repository of each instance, by its id, made in `folder` unless it is there.

    Instances of one repository share it: each starts at its only commit. Safe against two processes
    at once. Raises SwebenchError where git is missing or the commit is not the instance's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for instance in json.loads(SUITE_FILE.read_text(encoding="utf-8")):
        name = instance["repo"].partition("/")[2]
        path = folder / name
        if not path.exists():
            _make(name, path)
        commit = _git(path, "rev-parse", "HEAD")
        if commit != instance["base_commit"]:
            raise SwebenchError(
                f"{path}: is at commit {commit}, {instance['instance_id']} starts at "
                f"{instance['base_commit']}: remove the folder; if that does not help, the suite's "
                "files were changed"
            )
        paths[instance["instance_id"]] = path
    return paths


def _make(name: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, ignore_cleanup_errors=True) as partial:
        made = Path(partial) / name
        shutil.copytree(REPOSITORIES / name, made, ignore=_NOT_SOURCES)
        for file in made.rglob("*"):  # an installer may have set other modes, which git would note
            file.chmod(0o755 if file.is_dir() else 0o644)
        _git(made, "init", "--quiet", "--initial-branch=main")
        _git(made, "add", "--all")
        _git(made, "commit", "--quiet", "--message", "Start")
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # unless another process was quicker
                raise


def _git(path: Path, *arguments: str) -> str:
    # read-only use must not depend on who owns the folder
    command = ["git", "-c", f"safe.directory={path}", "-C", str(path), *arguments]
    try:
        done = subprocess.run(
            command, env=_GIT_ENVIRONMENT, check=True, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise SwebenchError("git is not installed, and instances are git repositories") from error
    except subprocess.CalledProcessError as error:
        raise SwebenchError(f"{' '.join(command)}: {error.stderr.strip()[-500:]}") from error
    return done.stdout.strip()
