"""A scratch copy of a project, as a git repository of its own, for an agent to work in."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOT_COPIED = shutil.ignore_patterns(".git", "__pycache__", ".venv", ".pytest_cache")
# Neither the user's nor the machine's git settings (signing, hooks, templates) apply here.
_GIT_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}


@contextmanager
def scratch_copy(project: Path) -> Iterator[Path]:
    """A copy of `project` with everything in it committed, deleted on exit.

    Raises OSError if `project` cannot be read, CalledProcessError if git fails. Where git is not
    installed the copy is a plain folder.
    """
    with tempfile.TemporaryDirectory(prefix="agentkv-", ignore_cleanup_errors=True) as folder:
        workspace = Path(folder) / project.resolve().name
        shutil.copytree(project, workspace, ignore=_NOT_COPIED)
        if shutil.which("git") is not None:
            _git(workspace, "init", "--quiet", "--initial-branch=main")
            _git(workspace, "add", "--all")
            _git(workspace, "commit", "--quiet", "--allow-empty", "--message", "Start")
        yield workspace


def _git(workspace: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", *arguments],
        cwd=workspace,
        env=_GIT_ENVIRONMENT,
        check=True,
        capture_output=True,
    )
