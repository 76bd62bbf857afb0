"""How long synthetic tools run, and commands that such a tool could have been.

A command tells its duration only roughly, as with real ones: most fit the duration they stand for,
some do not, so that a predictor can be right often and not always.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

from ..traces import TraceError, read_trace
from .plans import TurnPlan, WorkloadError

Tool = tuple[str, float]
"""A command and its seconds."""
ToolSource = Callable[[random.Random], Tool]

TOOLS = ("recorded", "longtail")
MISLEADING_SHARE = 0.1
"""Commands whose name says nothing of how long they take. Assumed: no source tells this share."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln(x) is normal: the `median` of x, and the deviation `sigma` of ln(x)."""

    median: float
    sigma: float

    @classmethod
    def from_mean(cls, mean: float, deviation: float) -> LogNormal:
        """The one with this mean and standard deviation of the values themselves."""
        variance = math.log(1.0 + (deviation / mean) ** 2)
        return cls(mean * math.exp(-variance / 2.0), math.sqrt(variance))

    @classmethod
    def from_quantiles(cls, p50: float, p90: float) -> LogNormal:
        return cls(p50, math.log(p90 / p50) / NormalDist().inv_cdf(0.9))

    def draw(self, chance: random.Random) -> float:
        return self.median * math.exp(self.sigma * chance.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class LongTailTimes:
    """Tools with p50 1.1 s, p90 5.3 s, p99 48 s: a log-normal body and a tail of 5%.

    Source: the three quantiles are this project's figures for long-tailed tools; share and width
    of the tail (0.05, 0.8) are chosen, the other three numbers solved for the quantiles.
    """

    body: LogNormal = LogNormal(1.0283, 1.0209)
    tail: LogNormal = LogNormal(24.370, 0.8)
    tail_share: float = 0.05

    def draw(self, chance: random.Random) -> float:
        part = self.tail if chance.random() < self.tail_share else self.body
        return part.draw(chance)


LONG_TAIL = LongTailTimes()

_BASH_COMMANDS: Sequence[tuple[float, Sequence[str]]] = (
    (
        0.6,
        (
            "cd /testbed && grep -rn 'def {word}' src",
            "cat src/{word}.py",
            "ls -la src/{word}",
            "cd /testbed && git diff src/{word}.py",
            "sed -n '40,80p' src/{word}.py",
            "find . -maxdepth 2 -name '{word}*'",
        ),
    ),
    (
        4.0,
        (
            "cd /testbed && python reproduce_{word}.py",
            "cd /testbed && python -c 'import {word}; print({word})'",
            "cd /testbed && python -m pytest -x tests/test_{word}.py::test_{word}",
            "cd /testbed && find / -name '{word}*'",
        ),
    ),
    (
        math.inf,
        (
            "cd /testbed && python -m pytest -q tests",
            "cd /testbed && python -m pytest tests/{word}",
            "pip install -e .[{word}]",
            "cd /testbed && make {word}",
        ),
    ),
)
"""Commands by the longest duration, in seconds, that they are for."""
_WORDS = ("parser", "model", "query", "schema", "cache", "router", "loader", "signal", "table")


def bash_command(duration_s: float, chance: random.Random) -> str:
    """A bash command that could well take so long."""
    usual = next(texts for limit_s, texts in _BASH_COMMANDS if duration_s <= limit_s)
    is_misleading = chance.random() < MISLEADING_SHARE
    texts = chance.choice(_BASH_COMMANDS)[1] if is_misleading else usual
    return chance.choice(texts).format(word=chance.choice(_WORDS))


def tool_source(tools: str | Path) -> ToolSource | None:
    """What draws each turn's tool anew: a long tail, or a trace file's; None to keep what is there.

    A recorded command says nothing of a time drawn anew, so command and time are drawn together.
    Raises WorkloadError for a name that is unknown and a file that cannot be used.
    """
    if tools == "recorded":
        return None
    if tools == "longtail":
        return _long_tail_tool
    if isinstance(tools, str):
        allowed = " or ".join(TOOLS)
        raise WorkloadError(f"tools: got {tools!r}, allowed is {allowed}, or a trace file's path")
    try:
        rows = [row for row in read_trace(tools).rows if row.bound == "exact"]
    except TraceError as error:
        raise WorkloadError(f"tools: {error}") from error
    if not rows:
        raise WorkloadError(f"tools: {tools}: no command in it whose duration is known exactly")
    pairs = [(row.command, row.duration_s) for row in rows]
    return lambda chance: chance.choice(pairs)


def redraw_tools(
    turns: Sequence[TurnPlan], draw: ToolSource, chance: random.Random
) -> tuple[TurnPlan, ...]:
    """The same turns with tools drawn anew; the last has none."""
    redrawn = []
    for turn in turns[:-1]:
        command, tool_s = draw(chance)
        redrawn.append(replace(turn, command=command, tool_s=tool_s))
    return (*redrawn, *turns[-1:])


def _long_tail_tool(chance: random.Random) -> Tool:
    tool_s = LONG_TAIL.draw(chance)
    return bash_command(tool_s, chance), tool_s
