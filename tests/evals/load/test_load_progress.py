"""Facts about what is shown while a run goes on."""

from __future__ import annotations

import asyncio
import io
import sys

import pytest

from agentkv.evals.load import load_progress
from agentkv.evals.load.load_run import LoadState


def test_a_line_counts_jobs() -> None:
    """Arrived, running and done; failed and cut only where there are some."""
    state = LoadState(num_jobs=20, arrived=12, done=5)
    assert load_progress.progress_line(state) == "12 of 20 arrived, 7 running, 5 done"
    state.failed = 2
    assert load_progress.progress_line(state) == "12 of 20 arrived, 5 running, 5 done, 2 failed"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_progress_goes_to_stderr_until_cancelled(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    """Lines, or a bar on a terminal; standard output stays empty."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(load_progress, "LINE_EVERY_S", 0.01)
    state = LoadState(num_jobs=4, arrived=3, done=1)

    async def watch() -> None:
        showing = asyncio.ensure_future(load_progress.show_progress(state, "fcfs", lambda: 1.0))
        await asyncio.sleep(0.3)
        showing.cancel()
        await asyncio.wait({showing})

    asyncio.run(watch())
    assert "3 of 4 arrived" in stream.getvalue()
