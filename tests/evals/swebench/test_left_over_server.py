"""Facts about the server of a run that was killed: it is found, and nothing else is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkv.evals.swebench.left_over_server import NOTE, end_left_over, forget_server, note_server


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Leader of a group of its own, as servers are."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(command, start_new_session=True) as running:
        yield running
        running.kill()


def test_a_server_that_still_runs_is_ended(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Once; the note is gone then."""
    note_server(tmp_path, process.pid)
    assert end_left_over(tmp_path)
    assert process.wait(10) == -9
    assert not end_left_over(tmp_path)


def test_another_process_with_its_number_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Numbers come round: it must have started at the same time."""
    note_server(tmp_path, process.pid)
    note = json.loads((tmp_path / NOTE).read_text())
    (tmp_path / NOTE).write_text(json.dumps(note | {"started_ticks": 1}))
    assert not end_left_over(tmp_path)
    assert process.poll() is None


def test_a_server_that_was_stopped_is_forgotten(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """The ordinary end of a run."""
    note_server(tmp_path, process.pid)
    forget_server(tmp_path)
    assert not end_left_over(tmp_path)
    assert process.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}'])
def test_a_damaged_note_is_no_server(tmp_path: Path, text: str) -> None:
    """As a kill may leave it."""
    (tmp_path / NOTE).write_text(text)
    assert not end_left_over(tmp_path)
