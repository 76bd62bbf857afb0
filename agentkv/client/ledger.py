"""Counts the turns of one job, and adds up their time and tokens.

Bookkeeping behind one lock, since the turns of a job may overlap; the clock is an argument. Knows
nothing about HTTP, sessions or servers.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from agentkv.client.replies import Usage

Clock = Callable[[], float]

MIN_HINT_TOKENS = 512
"""Fewer tokens lost in a job are not worth a hint."""

SAVINGS_KEYS = (
    *("compared_tokens", "compared_hit_tokens"),
    *("stock_hit_tokens", "gained_engine_s"),
)

logger = logging.getLogger(__name__)

_DURATION = attrgetter("duration_s")


@dataclass(frozen=True, slots=True)
class ToolTime:
    """The duration of a tool, named by its command or else its name."""

    text: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class NumberedTurn:
    """A turn in progress: its number, and what its request reports to the server."""

    number: int
    is_last_step: bool
    last_tool: ToolTime | None
    started_at_s: float


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Totals of one job; `print(summary)` shows them as a small table.

    Token counts are the server's own: None if no reply reported them, and without the
    `turns_without_usage` turns that did not (a stream without `include_usage`). Times of
    overlapping turns add up. `tool_s` is what `job.tool(...)` measured. `gap_s` is the time between
    a reply and the next request if nothing was measured in it: tools and the agent's own work.
    """

    job_id: str
    turns: int = 0
    failed_calls: int = 0
    turns_without_usage: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    llm_s: float = 0.0
    tool_calls: int = 0
    tool_s: float = 0.0
    gap_s: float = 0.0
    savings: Mapping[str, float] | None = None
    """SAVINGS_KEYS as the servers have said them by now, added up; None if none has."""

    def __str__(self) -> str:
        failed = f" ({self.failed_calls:,} failed calls)" if self.failed_calls else ""
        rows = {
            "job": self.job_id,
            "turns": f"{self.turns:,}{failed}",
            "prompt tokens": self._tokens(self.prompt_tokens),
            "cached tokens": self._cached(),
            "output tokens": self._tokens(self.output_tokens),
            "LLM time": f"{self.llm_s:.2f} s",
            "tool time": f"{self.tool_s:.2f} s ({self.tool_calls:,} calls)",
            "gap time": f"{self.gap_s:.2f} s (between turns, no tool measured)",
        }
        if self.savings is not None:
            rows["later turns"] = against_stock(self.savings)
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

    def _tokens(self, count: int | None) -> str:
        if count is None:
            return "not reported"
        if not self.turns_without_usage:
            return f"{count:,}"
        turns = "turn" if self.turns_without_usage == 1 else "turns"
        return f"{count:,} ({self.turns_without_usage:,} {turns} not reported)"

    def _cached(self) -> str:
        if self.cached_tokens is None or not self.prompt_tokens:
            return self._tokens(self.cached_tokens)
        return f"{self.cached_tokens:,} ({self.cached_tokens / self.prompt_tokens:.0%} of prompt)"


def against_stock(savings: Mapping[str, Any]) -> str:
    """What later turns found in the cache, and what stock vLLM would have found."""
    prompts = savings.get("compared_tokens")
    if not prompts:
        return "not compared with stock yet"
    hits, stock = (savings[name] / prompts for name in ("compared_hit_tokens", "stock_hit_tokens"))
    return (
        f"{hits:.0%} of prompt tokens came from the cache; stock: about {stock:.0%}, "
        f"{savings['gained_engine_s']:.2f} s of engine time"
    )


class TurnLedger:
    """Numbers the turns of a job and adds up their costs. Safe for any number of threads."""

    def __init__(self, job_id: str, *, clock: Clock) -> None:
        self._job_id = job_id
        self._clock = clock
        self._lock = threading.Lock()
        self._last_number = 0
        self._num_in_flight = 0
        self._hard_limit: int | None = None
        self._is_last_step = False
        self._longest_tool: ToolTime | None = None
        self._num_tools_running = 0
        self._idle_since_s: float | None = None
        # The sums of JobSummary so far; a token count that no reply reported has none.
        self._totals: defaultdict[str, Any] = defaultdict(int)
        self._saved: dict[str, dict[str, float]] = {}
        self._has_hinted = False

    def mark_last_step(self) -> None:
        """Make the next turn the last step of the job."""
        with self._lock:
            self._is_last_step = True

    def limit_turns(self, num_turns: int) -> None:
        """Make turn number `num_turns` the last step of the job."""
        with self._lock:
            self._hard_limit = num_turns

    def begin(self) -> NumberedTurn:
        """Open the next turn; it carries the longest tool run since the previous turn."""
        now_s = self._clock()
        with self._lock:
            if self._idle_since_s is not None:
                if self._longest_tool is None and not self._num_tools_running:
                    self._totals["gap_s"] += now_s - self._idle_since_s
                self._idle_since_s = None
            self._num_in_flight += 1
            self._last_number += 1
            turn = NumberedTurn(
                number=self._last_number,
                is_last_step=self._is_last_step or self._last_number == self._hard_limit,
                last_tool=self._longest_tool,
                started_at_s=now_s,
            )
            self._is_last_step = False
            self._longest_tool = None
            return turn

    def finish(self, turn: NumberedTurn, usage: Usage | None, *, ended_at_s: float) -> None:
        """Close a turn that was answered; `ended_at_s` is when the last of the reply arrived."""
        with self._lock:
            self._num_in_flight -= 1
            if not self._num_in_flight:
                self._idle_since_s = ended_at_s
            totals = self._totals
            totals["turns"] += 1
            totals["turns_without_usage"] += usage is None
            totals["llm_s"] += ended_at_s - turn.started_at_s
            for name, count in ({} if usage is None else usage.counts()).items():
                if count is not None:
                    totals[name] += count

    def fail(self, turn: NumberedTurn) -> None:
        """Close a turn without an answer: the next request gets its number and what it carried.

        The server takes a repeated number for a retry. A turn that is not the newest leaves a gap
        in the numbers instead, since a later number was sent already.
        """
        with self._lock:
            self._num_in_flight -= 1
            self._totals["failed_calls"] += 1
            if self._last_number == turn.number:
                self._last_number -= 1
            self._is_last_step = self._is_last_step or turn.is_last_step
            tools = filter(None, (turn.last_tool, self._longest_tool))
            self._longest_tool = max(tools, key=_DURATION, default=None)

    def begin_tool(self) -> int | None:
        """Note that a tool starts; returns the turn that it follows, None before the first."""
        with self._lock:
            self._num_tools_running += 1
            return self._last_number or None

    def finish_tool(self, text: str, duration_s: float) -> None:
        """Note that a tool ended."""
        with self._lock:
            self._num_tools_running -= 1
            self._totals["tool_calls"] += 1
            self._totals["tool_s"] += duration_s
            tools = filter(None, (ToolTime(text, duration_s), self._longest_tool))
            self._longest_tool = max(tools, key=_DURATION)

    def note_savings(self, root_url: str, savings: object) -> None:
        """Note what a server says it has saved for the job; anything else than that is ignored.

        Once a job it logs a hint, if more than half of the tokens that should have been in the
        cache were not because the prompt had changed.
        """
        if not isinstance(savings, Mapping):
            return
        try:
            saved = {name: float(savings.get(name, 0)) for name in SAVINGS_KEYS}
            expected, diverged = (
                int(savings["expected_tokens"]),
                int(savings["recomputed_tokens"]["diverged"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        with self._lock:
            self._saved[root_url] = saved
            is_much = diverged >= MIN_HINT_TOKENS and 2 * diverged > expected
            is_first = is_much and not self._has_hinted
            self._has_hinted = self._has_hinted or is_much
        if is_first:
            logger.warning(
                "agentkv: %d of the %d tokens that job %s should have found in the server's cache "
                "were computed again, because its prompts do not repeat the turn before. "
                "`agentkv explain` shows where they differ.",
                *(diverged, expected, self._job_id),
            )

    def summary(self) -> JobSummary:
        """The totals so far."""
        with self._lock:
            summary, saved = JobSummary(self._job_id, **self._totals), list(self._saved.values())
        if not saved:
            return summary
        sums = {name: sum(each[name] for each in saved) for name in SAVINGS_KEYS}
        return replace(summary, savings=sums)
