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

from .plans import TurnPlan, WorkloadError
from .traces import TraceError, read_trace

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


# MERGED: The job of the reference experiment: eight turns that read, search, test and report.
# MERGED: Prompts grow from 92 to 2,915 tokens; tools take 50 to 300 ms, the test run 2 to 5 s.

PROMPT_TOKENS = (92, 469, 811, 1343, 1655, 2241, 2665, 2915)
"""Source: the reference experiment's A/B run on vLLM-Continuum (RTX 5090, Llama-3.1-8B)."""
OUTPUT_TOKENS = (24, 16, 12, 24, 16, 12, 64, 24)
"""Assumed: the reference tells no output lengths. In proportion to its mean latency by turn at 8
jobs per second (1263, 735, 574, 1005, 749, 641, 3732, 1236 ms); in all what fits its 6.65 s a job
at 2 jobs per second less 3.9 s of tools, at 11 to 14 ms a token."""
REFERENCE_TOOLS = (
    ("ls -la", 0.050, 0.150),
    ("cat main.py", 0.050, 0.100),
    ("grep -rn TODO .", 0.050, 0.100),
    ("git status", 0.080, 0.200),
    ("python -m pytest -q", 2.0, 5.0),
    ("cat tests/test_main.py", 0.050, 0.100),
    ("git diff", 0.100, 0.300),
)
"""Command, and the range of its seconds, drawn evenly. Source: the ranges are the reference's."""


def reference_turns(chance: random.Random) -> tuple[TurnPlan, ...]:
    """All jobs are the same but for how long the tools take."""
    turns = []
    context_tokens = 0
    for number, (prompt_tokens, output_tokens) in enumerate(
        zip(PROMPT_TOKENS, OUTPUT_TOKENS, strict=True)
    ):
        command, low_s, high_s = (
            REFERENCE_TOOLS[number] if number < len(REFERENCE_TOOLS) else ("", 0.0, 0.0)
        )
        added_tokens = prompt_tokens - context_tokens
        tool_s = chance.uniform(low_s, high_s)
        turns.append(TurnPlan(added_tokens, output_tokens, command, tool_s))
        context_tokens = prompt_tokens + output_tokens
    return tuple(turns)


# MERGED: Jobs drawn to published figures: coding agents on SWE-bench, function calling on
# MERGED: BFCL.


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """ln(tokens) is normal, by median and 90% quantile; never below 1 nor above `most`."""

    p50: float
    p90: float
    most: int

    def draw(self, chance: random.Random) -> int:
        tokens = LogNormal.from_quantiles(self.p50, self.p90).draw(chance)
        return min(max(1, round(tokens)), self.most)


@dataclass(frozen=True, slots=True)
class JobKind:
    """What is drawn for each job; turns are normal, the rest log-normal."""

    mean_turns: float
    turns_deviation: float
    first_tokens: TokenCounts
    added_tokens: TokenCounts
    output_tokens: TokenCounts
    tool_times: LogNormal
    command: Callable[[float, random.Random], str]


_FUNCTIONS = ("get_stock_info", "book_flight", "list_files", "send_message", "search_hotels")


def _function_call(tool_s: float, chance: random.Random) -> str:
    return f"{chance.choice(_FUNCTIONS)} --id {chance.randrange(100, 1000)}"


SWEBENCH = JobKind(
    mean_turns=10.9,
    turns_deviation=2.1,
    first_tokens=TokenCounts(1640, 2354, 4655),
    added_tokens=TokenCounts(92, 755, 3435),
    output_tokens=TokenCounts(89, 681, 2465),
    tool_times=LogNormal.from_mean(0.925, 3.55),
    command=bash_command,
)
"""Turns and tools: Continuum (arXiv 2511.02230 v6), SWE-bench 10.9+-2.1 turns, tools 0.925+-3.55 s.
Tokens: 393 mini-swe-agent runs on SWE-bench Verified (gruckion/mini-swe-agent, MIT): first prompt,
tokens that a tool's output adds, output; p50 and p90, cut at the p99."""

BFCL = JobKind(
    mean_turns=6.3,
    turns_deviation=2.3,
    first_tokens=TokenCounts(1500, 3000, 6000),
    added_tokens=TokenCounts(80, 300, 1500),
    output_tokens=TokenCounts(50, 120, 400),
    tool_times=LogNormal.from_mean(1.923, 2.133),
    command=_function_call,
)
"""Turns and tools: Continuum (arXiv 2511.02230 v6), BFCL 6.3+-2.3 turns, tools 1.923+-2.133 s.
Tokens are assumed (the paper has none): function definitions first, then short calls, results."""


def synthetic_turns(kind: JobKind, chance: random.Random) -> tuple[TurnPlan, ...]:
    """One job of the kind, of two turns or more."""
    num_turns = max(2, round(chance.gauss(kind.mean_turns, kind.turns_deviation)))
    turns = []
    for number in range(num_turns):
        counts = kind.added_tokens if number else kind.first_tokens
        added_tokens, output_tokens = counts.draw(chance), kind.output_tokens.draw(chance)
        tool_s = kind.tool_times.draw(chance)
        command = kind.command(tool_s, chance)
        if number == num_turns - 1:
            command, tool_s = "", 0.0
        turns.append(TurnPlan(added_tokens, output_tokens, command, tool_s))
    return tuple(turns)
