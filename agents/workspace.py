"""Folders that an agent may change: a scratch copy of a project, or a clone at one commit.

The bash agent works in the first, SWE-bench's agents and its grading in the second. Git runs
without the surroundings' settings: not the user's, and not the GIT_DIR that git sets for its hooks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".venv", ".pytest_cache", "*.pyc")
# The clone holds one commit: later ones in the repository would give the solution away.
_UPLOAD_PACK = "git -c uploadpack.allowAnySHA1InWant=true -c safe.directory=* upload-pack"


def clean_git(*arguments: str, identity: Mapping[str, str] | None = None) -> str:
    """Run git with an environment of our own; return its output without surrounding blanks.

    `identity` holds GIT_AUTHOR_* and GIT_COMMITTER_* variables, for commits. Raises
    CalledProcessError with git's words in `stderr`, and FileNotFoundError without git.
    """
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        **(identity or {}),
    }
    # safe.directory: reading a repository must not depend on who owns its folder
    command = ["git", "-c", "safe.directory=*", *arguments]
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def commit_all(folder: Path, *, author: str, email: str, date: str | None = None) -> None:
    """Make `folder` a git repository with one commit of everything in it.

    The hash depends on the files, the author and `date` only; without a date it is the time now.
    """
    identity: dict[str, str] = {}
    for role in ("AUTHOR", "COMMITTER"):
        identity |= {f"GIT_{role}_NAME": author, f"GIT_{role}_EMAIL": email}
        identity |= {} if date is None else {f"GIT_{role}_DATE": date}
    git = ("-C", str(folder))
    clean_git(*git, "init", "--quiet", "--initial-branch=main")
    clean_git(*git, "add", "--all")
    clean_git(*git, "commit", "--quiet", "--allow-empty", "--message", "Start", identity=identity)


@contextmanager
def scratch_copy(project: Path) -> Iterator[Path]:
    """Copy `project`, with everything in it committed; the copy is deleted on exit.

    Raises OSError if `project` cannot be read, CalledProcessError if git fails. Where git is not
    installed the copy is a plain folder.
    """
    with tempfile.TemporaryDirectory(prefix="agentkv-", ignore_cleanup_errors=True) as folder:
        workspace = Path(folder) / project.resolve().name
        shutil.copytree(project, workspace, ignore=_NOT_COPIED)
        if shutil.which("git") is not None:
            commit_all(workspace, author="agent", email="agent@localhost")
        yield workspace


def clone_commit(repository: Path, commit: str, folder: Path) -> None:
    """Make `folder` a repository that holds one commit of `repository`, checked out."""
    clean_git("init", "--quiet", "--initial-branch=main", str(folder))
    source = f"file://{repository.resolve()}"
    fetch = ("fetch", "--quiet", "--depth=1", f"--upload-pack={_UPLOAD_PACK}", source, commit)
    clean_git("-C", str(folder), *fetch)
    clean_git("-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD")
