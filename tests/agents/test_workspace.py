"""Facts about the scratch copy that an agent works in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from agentkv.agents.workspace import scratch_copy

PROJECT = Path(__file__).parents[2] / "examples" / "project"


def test_the_copy_is_a_clean_repository() -> None:
    """Everything copied is committed, so that `git status` has nothing to say."""
    with scratch_copy(PROJECT) as workspace:
        status = subprocess.run(
            ["git", "status", "--porcelain"],
            check=False,
            cwd=workspace,
            capture_output=True,
            text=True,
        )
        assert (status.returncode, status.stdout) == (0, "")
        assert (workspace / "main.py").read_text() == (PROJECT / "main.py").read_text()


def test_changes_stay_in_the_copy() -> None:
    """The project itself is never written to, and the copy is gone afterwards."""
    before = (PROJECT / "main.py").read_text()
    with scratch_copy(PROJECT) as workspace:
        (workspace / "main.py").write_text("changed")
    assert (PROJECT / "main.py").read_text() == before
    assert not workspace.exists()
