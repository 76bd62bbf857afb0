"""Shows how far a long command is: a bar on a terminal, plain lines elsewhere; always on stderr.

Used by every command that takes longer than a few seconds. Knows nothing of what is counted.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentkv.visible import visible

Show = Callable[[int, str], None]
"""Takes how many steps are completed, and a text about them."""


@contextmanager
def progress(label: str, total: int, what: str, *, every_s: float = 5.0) -> Iterator[Show]:
    """Yield a function that shows how many of `total` are completed, and a text.

    what: plural of what is counted, such as "jobs".
    every_s: seconds between two plain lines; the last step always gets one, and 0 prints every
        call. A bar is redrawn at every call.
    """
    terminal = getattr(sys.stderr, "beneath", sys.stderr)  # below a VisibleStream
    if not terminal.isatty():
        yield _lines(label, total, what, every_s)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(file=terminal), transient=True) as bar:
        task = bar.add_task(escape(label), total=total)

        def show(completed: int, text: str) -> None:
            said = escape(visible(f"{label}: {completed} of {total} {what}: {text}"))
            bar.update(task, completed=completed, description=said)

        yield show


def _lines(label: str, total: int, what: str, every_s: float) -> Show:
    started_s = shown_s = time.monotonic()
    is_over = False

    def show(completed: int, text: str) -> None:
        nonlocal shown_s, is_over
        now_s = time.monotonic()
        if is_over or (now_s - shown_s < every_s and completed < total):
            return
        shown_s, is_over = now_s, completed >= total and every_s > 0
        elapsed_s = now_s - started_s
        left = ""
        if 0 < completed < total:
            left = f", about {elapsed_s * (total - completed) / completed:.0f} s left"
        done = f"{completed} of {total} {what} in {elapsed_s:.0f} s{left}"
        print(f"{label}: {done}: {text}", file=sys.stderr, flush=True)

    return show
