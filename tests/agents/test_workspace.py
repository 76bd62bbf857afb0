"""Facts about the scratch copy that an agent works in."""

from __future__ import annotations

from pathlib import Path

from agentkv.agents.workspace import clean_git, scratch_copy

PROJECT = Path(__file__).parents[2] / "examples" / "project"


def test_the_copy_is_a_clean_repository_of_its_own() -> None:
    """Everything copied is committed, changes stay in the copy, and it is gone afterwards."""
    before = (PROJECT / "main.py").read_text()
    with scratch_copy(PROJECT) as workspace:
        assert clean_git("-C", str(workspace), "status", "--porcelain") == ""
        assert (workspace / "main.py").read_text() == before
        (workspace / "main.py").write_text("changed")
    assert (PROJECT / "main.py").read_text() == before
    assert not workspace.exists()
