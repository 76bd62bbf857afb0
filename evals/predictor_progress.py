"""How far a long evaluation is: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(num_steps: int, say: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Gives a function to call as each of `num_steps` steps begins; the bar is on stderr."""
    if not sys.stderr.isatty():
        yield _line_per_step(num_steps, say)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=num_steps)
        num_begun = 0

        def begin(name: str) -> None:
            nonlocal num_begun
            bar.update(task, description=name, completed=num_begun)
            num_begun += 1

        yield begin


def _line_per_step(num_steps: int, say: Callable[[str], None]) -> Callable[[str], None]:
    start_s, num_begun = time.monotonic(), 0

    def begin(name: str) -> None:
        nonlocal num_begun
        num_begun += 1
        say(f"[{num_begun}/{num_steps}] {name} ({time.monotonic() - start_s:.0f} s)")

    return begin
