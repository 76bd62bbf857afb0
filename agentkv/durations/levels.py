"""Windows of durations at three levels, from what is most alike to everything: context, tool, all.

The context is the main program with what tells its runs apart (`python:-m:pytest`), the tool its
name (`python`). Source for the levels and the cold-start count: ContextServe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic

from agentkv.commands import CommandAnalysis, Program
from agentkv.durations.rules import command_speed
from agentkv.durations.verdicts import counted
from agentkv.durations.windows import RecentWindows, W

COLD_START = 5
"""Observations from which on a level is used."""
MAX_CONTEXTS = 256
MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Level(Generic[W]):
    """One window and the context or tool that it covers; `key` is None for that of all commands."""

    key: str | None
    window: W

    @property
    def is_warm(self) -> bool:
        return len(self.window) >= COLD_START

    def __str__(self) -> str:
        return "commands of any kind" if self.key is None else f"`{self.key}`"

    def why_cold(self) -> str:
        """A sentence on a level without enough observations."""
        return f"Only {counted(len(self.window), 'run')} of {self} so far, too few to judge by."


class Levels(Generic[W]):
    """At most MAX_CONTEXTS windows by context, MAX_TOOLS by tool, and one of all commands."""

    def __init__(self, new_window: Callable[[], W]) -> None:
        self._contexts = RecentWindows(new_window, MAX_CONTEXTS)
        self._tools = RecentWindows(new_window, MAX_TOOLS)
        self._all: Level[W] = Level(None, new_window())

    def best(self, command: CommandAnalysis) -> Level[W]:
        """The most specific level past its cold start; that of all commands if there is none."""
        program = main_program(command)
        if program is None:
            return self._all
        for key, windows in ((program.key, self._contexts), (program.name, self._tools)):
            window = windows.get(key)
            if window is not None and len(window) >= COLD_START:
                return Level(key, window)
        return self._all

    def to_observe(self, command: CommandAnalysis) -> Iterator[W]:
        """The windows that a run of this command belongs to, made where they are missing."""
        program = main_program(command)
        if program is not None:
            yield self._contexts.to_observe(program.key)
            yield self._tools.to_observe(program.name)
        yield self._all.window

    def state(self) -> dict[str, Any]:
        return {
            "contexts": self._contexts.state(),
            "tools": self._tools.state(),
            "all": self._all.window.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where the data does not fit."""
        self._contexts.restore(state["contexts"])
        self._tools.restore(state["tools"])
        self._all.window.restore(state["all"])


def main_program(command: CommandAnalysis) -> Program | None:
    """The first of the programs that decide the rules' verdict; None where nothing runs.

    So `cat x | python train.py` is a python, and `ls && go test` a go.
    """
    _, decisive = command_speed(command)
    return decisive[0] if decisive else None
