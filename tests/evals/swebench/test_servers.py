"""Facts about a run's server: what it added to the totals, and what a killed run left running."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """The leader of a process group, as servers are."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as running:
        yield running
        running.kill()


def test_a_server_left_running_is_ended(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    """The noted server is killed once, and its note is gone then."""
    note_server(tmp_path, process.pid)
    assert end_left_over(tmp_path)
    assert process.wait(10) == -9
    assert not end_left_over(tmp_path)


@pytest.mark.parametrize("change", [{"started_ticks": 1}, {"pid": "x"}, None])
def test_another_process_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes], change: dict[str, Any] | None
) -> None:
    """A process with the same id but another start, or a damaged note, is not the server."""
    note_server(tmp_path, process.pid)
    note = json.loads((tmp_path / SERVER_NOTE).read_text())
    (tmp_path / SERVER_NOTE).write_text("{" if change is None else json.dumps(note | change))
    assert not end_left_over(tmp_path)
    assert process.poll() is None
