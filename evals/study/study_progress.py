"""How far a study is: a bar on a terminal, a line a unit elsewhere; on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .units import Unit

ShowUnit = Callable[[Unit, Mapping[str, Any]], None]


@contextmanager
def study_progress(num_units: int) -> Iterator[ShowUnit]:
    """Gives a function to call after each unit."""
    if sys.stderr.isatty():
        with _bar(num_units) as show:
            yield show
        return
    numbers = iter(range(1, num_units + 1))
    yield lambda unit, row: print(
        f"{next(numbers)}/{num_units} {unit}: {_told(row)}", file=sys.stderr, flush=True
    )


@contextmanager
def _bar(num_units: int) -> Iterator[ShowUnit]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = BarColumn(), MofNCompleteColumn(), TimeLeft(), TextColumn("{task.fields[line]}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("units", total=num_units, line="")

        def show(unit: Unit, row: Mapping[str, Any]) -> None:
            line = escape(f"{unit}: {_told(row)}")
            bar.update(task, advance=1, line=line)
            if row["error"] is not None:
                bar.console.print(line)

        yield show


def _told(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return f"failed: {row['error']}"
    done = f"{row['completed']} of {row['jobs']} jobs, " if row["completed"] < row["jobs"] else ""
    mean_s = "-" if row["mean_s"] is None else f"{row['mean_s']:.1f} s"
    return f"{done}mean {mean_s} ({row['wall_s']:.1f} s)"
