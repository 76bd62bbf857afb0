"""Facts about a run's server: what it added to the totals, and what a killed run left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench.folder import SERVER_NOTE
from agentkv.evals.swebench.servers import (
    added_totals,
    end_left_over,
    note_server,
    summed_totals,
)

BEFORE = {"pins_total": {"fast": 2}, "preemptions_total": 5, "pinned_jobs": 3}
AFTER = {"pins_total": {"fast": 6, "slow": 1}, "preemptions_total": 9, "pinned_jobs": 0}
TOTALS = {"pins_total": {"fast": 6, "slow": 1}, "preemptions_total": 9}


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        (BEFORE, AFTER, {"pins_total": {"fast": 4, "slow": 1}, "preemptions_total": 4}),
        (None, AFTER, TOTALS),
        ({"pins_total": {"fast": 2, "slow": 9}, "preemptions_total": 1}, AFTER, TOTALS),
        (None, None, None),
    ],
    ids=["served before", "fresh", "restarted", "no plugin"],
)
def test_only_what_the_run_added_counts(before: Any, after: Any, added: Any) -> None:
    """Earlier totals are subtracted, unless one has fallen: then the server was restarted."""
    assert added_totals(before, after) == added


def test_sessions_of_a_run_add_up() -> None:
    """A run that was resumed on another server has the totals of both."""
    first = {"pins_total": {"fast": 1}, "preemptions_total": 1}
    both = {"pins_total": {"fast": 7, "slow": 1}, "preemptions_total": 10}
    assert summed_totals(first, TOTALS) == both
    assert summed_totals(first, None) == summed_totals(None, first) == first
    assert summed_totals(None, None) is None


@pytest.mark.parametrize(
    ("note", "is_ours"), [(None, True), ("{pid} 1", False), ("x y", False), ("", False)]
)
def test_a_server_left_running_is_ended(tmp_path: Path, note: str | None, is_ours: bool) -> None:
    """The noted server is killed once; one that started at another time, or a damaged note, not."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            note_server(tmp_path, process.pid)
            if note is not None:
                (tmp_path / SERVER_NOTE).write_text(note.format(pid=process.pid))
            assert end_left_over(tmp_path) is is_ours
            assert (process.wait(10) if is_ours else process.poll()) == (-9 if is_ours else None)
            assert not end_left_over(tmp_path)
        finally:
            process.kill()
