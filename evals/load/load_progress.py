"""How far a run is: a bar on a terminal, a line every few seconds elsewhere; on stderr."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from .load_run import LoadState

REDRAW_EVERY_S = 0.25
LINE_EVERY_S = 10.0


async def show_progress(state: LoadState, label: str, clock: Callable[[], float]) -> None:
    """Show it until cancelled."""
    if sys.stderr.isatty():
        await _show_bar(state, label)
    else:
        await _show_lines(state, label, clock)


def progress_line(state: LoadState) -> str:
    trouble = "".join(
        f", {number} {what}"
        for number, what in ((state.failed, "failed"), (state.cut, "cut"))
        if number
    )
    return (
        f"{state.arrived} of {state.num_jobs} arrived, {state.running} running, "
        f"{state.done} done{trouble}"
    )


async def _show_bar(state: LoadState, label: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=state.num_jobs, line="")
        while True:
            over = state.done + state.failed + state.cut
            bar.update(task, completed=over, line=progress_line(state))
            await asyncio.sleep(REDRAW_EVERY_S)


async def _show_lines(state: LoadState, label: str, clock: Callable[[], float]) -> None:
    while True:
        await asyncio.sleep(LINE_EVERY_S)
        print(f"{label}: {clock():4.0f} s: {progress_line(state)}", file=sys.stderr, flush=True)
