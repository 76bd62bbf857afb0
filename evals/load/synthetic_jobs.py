"""Jobs drawn to published figures: coding agents on SWE-bench, function calling on BFCL."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .plans import TurnPlan
from .tool_times import LogNormal, bash_command


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
