"""How far a simulation is: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_EVERY_S = 5.0

ShowJobs = Callable[[int, int, float], None]
"""Takes jobs arrived, jobs ended, seconds of virtual time."""


@contextmanager
def progress(label: str, num_jobs: int) -> Iterator[ShowJobs]:
    """Gives a function to call after each job."""
    if sys.stderr.isatty():
        with _bar(label, num_jobs) as show:
            yield show
    else:
        yield _lines(label, num_jobs)


@contextmanager
def _bar(label: str, num_jobs: int) -> Iterator[ShowJobs]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}")
    with Progress(*text, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=num_jobs, line="")

        def show(arrived: int, ended: int, virtual_s: float) -> None:
            bar.update(task, completed=ended, line=progress_line(arrived, ended, virtual_s))

        yield show


def _lines(label: str, num_jobs: int) -> ShowJobs:
    started_s = shown_s = time.monotonic()

    def show(arrived: int, ended: int, virtual_s: float) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= LINE_EVERY_S or ended == num_jobs:
            shown_s = now_s
            rate = ended / max(now_s - started_s, 1e-9)
            line = progress_line(arrived, ended, virtual_s)
            print(
                f"{label}: {line} of {num_jobs} jobs, {rate:.0f} jobs/s",
                file=sys.stderr,
                flush=True,
            )

    return show


def progress_line(arrived: int, ended: int, virtual_s: float) -> str:
    """Where a run is, in words."""
    return f"{virtual_s:.0f} s: {arrived} arrived, {arrived - ended} running, {ended} ended"
