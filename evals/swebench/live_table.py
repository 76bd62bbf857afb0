"""What the agents of a run are at: a table on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from .instance_state import InstanceState

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_S = 30.0
_COMMAND_CHARS = 200
_MAX_ROWS = 30


@contextmanager
def shown(
    states: Sequence[InstanceState], label: str, clock: Callable[[], float]
) -> Iterator[LiveTable | PlainLines]:
    """Something to tick while the states change; `clock` is the one that they were written with."""
    if not sys.stderr.isatty():
        lines = PlainLines(states, label, clock)
        yield lines
        lines.tick()
        return
    from rich.console import Console
    from rich.live import Live

    table = LiveTable(states, label, clock)
    with Live(
        console=Console(stderr=True), get_renderable=table.render, auto_refresh=False
    ) as live:
        table.refresh = lambda: live.refresh()
        yield table
        table.tick()


def summary(states: Sequence[InstanceState]) -> str:
    """One line of numbers."""
    ended = Counter(state.status for state in states if state.is_over)
    active = sum(state.is_active for state in states)
    waiting = len(states) - active - ended.total()
    how = ", ".join(f"{number} {status}" for status, number in ended.most_common())
    return (
        f"{ended.total()} of {len(states)} over{f' ({how})' if how else ''}, {active} at work"
        + (f", {waiting} waiting" if waiting else "")
    )


class LiveTable:
    """The instances at work, one a row, and the numbers of all."""

    def __init__(
        self, states: Sequence[InstanceState], label: str, clock: Callable[[], float]
    ) -> None:
        self._states = states
        self._label = label
        self._clock = clock
        self.refresh: Callable[[], None] = lambda: None

    def tick(self) -> None:
        self.refresh()

    def render(self) -> Table:
        """For rich."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=f"{self._label}: {summary(self._states)}", expand=True)
        for name in ("instance", "turn", "command", "state", "s", "cached"):
            table.add_column(
                name,
                justify="right" if name in ("turn", "s", "cached") else "left",
                no_wrap=True,
                min_width=len(name),
                ratio=1 if name == "command" else None,  # what a narrow terminal cuts
            )
        for state in [one for one in self._states if one.is_active][:_MAX_ROWS]:
            table.add_row(*(escape(cell) for cell in _cells(state, self._clock())))
        return table


class PlainLines:
    """A line when an instance begins or ends, and the numbers now and then."""

    def __init__(
        self,
        states: Sequence[InstanceState],
        label: str,
        clock: Callable[[], float],
        out: TextIO | None = None,
    ) -> None:
        self._states = states
        self._label = label
        self._clock = clock
        self._out = out
        self._begun: set[str] = set()
        self._over: set[str] = set()
        self._said_s = time.monotonic()

    def tick(self) -> None:
        for state in self._states:
            if state.started_s is not None and state.instance_id not in self._begun:
                self._begun.add(state.instance_id)
                self._say(f"{state.instance_id}: begins")
            if state.is_over and state.instance_id not in self._over:
                self._over.add(state.instance_id)
                _, turn, _, status, elapsed_s, cached = _cells(state, self._clock())
                self._say(
                    f"{state.instance_id}: {status}, {turn} turns, {elapsed_s} s, {cached} cached"
                )
        if time.monotonic() - self._said_s > LINE_EVERY_S:
            self._say(summary(self._states))

    def _say(self, text: str) -> None:
        self._said_s = time.monotonic()
        line = f"{self._label}: {self._clock():6.1f} s: {text}"
        print(line, file=self._out or sys.stderr, flush=True)


def _cells(state: InstanceState, now_s: float) -> tuple[str, ...]:
    turns = state.turns
    began_s = now_s if state.started_s is None else state.started_s
    elapsed_s = (now_s if state.ended_s is None else state.ended_s) - began_s
    return (
        state.instance_id,
        str(len(turns)),
        " ".join(state.command.split())[:_COMMAND_CHARS],
        state.status,
        f"{elapsed_s:.0f}",
        _cached(turns),
    )


def _cached(turns: Sequence[dict[str, object]]) -> str:
    """The share of the prompts' tokens that came from the cache, as far as the server told."""
    pairs = [(turn.get("prompt_tokens"), turn.get("cached_tokens")) for turn in turns]
    known = [(p, c) for p, c in pairs if isinstance(p, int) and isinstance(c, int)]
    prompt_tokens = sum(prompt for prompt, _ in known)
    if not prompt_tokens:
        return "-"
    return f"{sum(cached for _, cached in known) / prompt_tokens:.0%}"
