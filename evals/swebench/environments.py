"""Where commands run: in a container, or in bubblewrap on a clone of a repository of the suite.

mini-swe-agent's environments run them. `batch` starts one per instance for the agent, `grading`
for the tests. Knows nothing about agents, models or servers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minisweagent.run.benchmarks.swebench import get_sb_environment

from agentkv.agents.sandbox import CLEAN_ENVIRONMENT, bubblewrap_options, find_bubblewrap

from .instances import SANDBOX, SUITE_FILE, Instance, SwebenchError, image_name

TESTBED = "/testbed"
"""Where SWE-bench's images have the repository; prompts and eval scripts name this path."""
WORKTREES, REPOSITORIES = "worktrees", "repositories"
_PULL_TIMEOUT_S = 1800  # mini-swe-agent gives an image of several gigabytes two minutes
_SHOWN_CHARS = 500


def start_environment(
    kind: str, folder: Path, config: Mapping[str, Any], instance: Instance
) -> Any:
    """Start mini-swe-agent's environment for one instance, by its configuration.

    Takes as long as pulling the image. Raises SwebenchError with the program's own words if there
    is no environment.
    """
    image = image_name(instance)
    ours: dict[str, Any] = {"environment_class": "docker", "executable": kind}
    with _words_of_errors(image):
        if kind == SANDBOX:
            ours = {"environment_class": SANDBOX, **_sandbox(instance, folder)}
        given = {"pull_timeout": _PULL_TIMEOUT_S, **config.get("environment", {}), **ours}
        row = {**instance, "image_name": image}
        return get_sb_environment({**config, "environment": given}, row)


def missing(kind: str) -> str | None:
    """Return why commands cannot run in this kind of environment here; None if they can."""
    if kind == SANDBOX:
        advice = "install it, or allow user namespaces"
        return None if find_bubblewrap() else f"no bubblewrap works here: {advice}"
    advice = f"use --environment {SANDBOX} for the instances of the demo"
    return None if shutil.which(kind) else f"{kind} is not installed: {advice}"


def prepare_suite(folder: Path) -> None:
    """Make the suite's git repositories in `folder`, with the same commits on every machine."""
    folder.mkdir(parents=True, exist_ok=True)
    for files in SUITE_FILE.with_name(REPOSITORIES).iterdir():
        if (folder / files.name).exists():
            continue
        with tempfile.TemporaryDirectory(dir=folder) as partial, _words_of_errors(folder):
            made = Path(partial) / files.name
            # running the tests in place leaves caches behind
            caches = shutil.ignore_patterns("__pycache__", ".pytest_cache", "*.pyc")
            shutil.copytree(files, made, ignore=caches)
            for file in made.rglob("*"):  # an installer may have set modes, which git would note
                file.chmod(0o755 if file.is_dir() else 0o644)
            git("-C", str(made), "init", "--quiet", "--initial-branch=main")
            git("-C", str(made), "add", "--all")
            git("-C", str(made), "commit", "--quiet", "--message", "Start")
            made.rename(folder / files.name)


def git(*arguments: str) -> str:
    """Run git without the user's settings and hooks' variables; return what it prints.

    Commits have a fixed author and date, and so the same hash on every machine. Raises
    CalledProcessError with git's words in `stderr`, and FileNotFoundError without git.
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    for role in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{role}_NAME"] = "agentkv"
        environment[f"GIT_{role}_EMAIL"] = "agentkv@localhost"
        environment[f"GIT_{role}_DATE"] = "2025-01-01T00:00:00+0000"
    command = ["git", "-c", "safe.directory=*", *arguments]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def _sandbox(instance: Instance, folder: Path) -> dict[str, Any]:
    """Clone an instance's repository at its commit; return the settings of its bubblewrap.

    The clone has no later commit, which would give the solution away. A command sees programs, the
    running Python, the clone and a /tmp that lasts: no network, no other files of the host.
    """
    name, repository = instance["instance_id"], folder / REPOSITORIES / instance["repo"][8:]
    if not instance["repo"].startswith("agentkv/") or not repository.is_dir():
        raise SwebenchError(f"{name}: {instance['repo']} lies in its image: use docker or podman")
    clones = folder.resolve() / WORKTREES
    clones.mkdir(exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=clones))
    (own / "tmp").mkdir()
    # bound under the host's name, as mini-swe-agent does it, with a link at the image's
    clone, source = str(own / "testbed"), f"file://{repository.resolve()}"
    git("init", "--quiet", "--initial-branch=main", clone)
    git("-C", clone, "fetch", "--quiet", "--depth=1", source, instance["base_commit"])
    git("-C", clone, "reset", "--quiet", "--hard", "FETCH_HEAD")
    options = bubblewrap_options(Path(clone), Path(clone), CLEAN_ENVIRONMENT, own / "tmp")
    wrapper = ["--symlink", clone, TESTBED, *options, "--new-session"]
    return {"executable": str(find_bubblewrap()), "wrapper_args": wrapper, "cwd": clone}


@contextmanager
def _words_of_errors(place: object) -> Iterator[None]:
    """Raise SwebenchError with what a program said instead of its exit status."""
    try:
        yield
    except FileNotFoundError as error:
        raise SwebenchError(f"{place}: {error.filename} is not installed") from error
    except subprocess.TimeoutExpired as error:
        advice = "pull it beforehand, or raise environment.pull_timeout with --config"
        raise SwebenchError(f"{place}: no container after {error.timeout:g} s: {advice}") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(str(error.stderr or error.stdout or "").split())[-_SHOWN_CHARS:]
        raise SwebenchError(f"{place}: {error.cmd[0]} ended: {said}") from error
