"""The books of one job: which turn comes next, and where its time and tokens went.

Pure bookkeeping behind one lock, since the turns of a job may overlap; the clock is handed in. It
knows nothing about HTTP, sessions or servers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from agentkv.client.replies import Usage

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ToolTime:
    """A tool that ran, by its command or else its name, and for how long."""

    text: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn under way: its number, and what its request tells the server."""

    number: int
    is_last_step: bool
    last_tool: ToolTime | None
    started_at_s: float


class TurnLedger:
    """Numbers the turns of a job and adds up what they took. Safe for any number of threads."""

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
        self._totals = _Totals()

    def mark_last_step(self) -> None:
        """The next turn is the last one of the job."""
        with self._lock:
            self._is_last_step = True

    def limit_turns(self, num_turns: int) -> None:
        """Turn number `num_turns` is the last one of the job."""
        with self._lock:
            self._hard_limit = num_turns

    def begin(self) -> OpenTurn:
        """Open the next turn; it carries the longest tool run since the turn before."""
        now_s = self._clock()
        with self._lock:
            if self._idle_since_s is not None:
                if self._longest_tool is None and not self._num_tools_running:
                    self._totals.gap_s += now_s - self._idle_since_s
                self._idle_since_s = None
            self._num_in_flight += 1
            self._last_number += 1
            turn = OpenTurn(
                number=self._last_number,
                is_last_step=self._is_last_step or self._last_number == self._hard_limit,
                last_tool=self._longest_tool,
                started_at_s=now_s,
            )
            self._is_last_step = False
            self._longest_tool = None
            return turn

    def finish(self, turn: OpenTurn, usage: Usage | None, *, ended_at_s: float) -> None:
        """Close a turn that was answered; `ended_at_s` is when the last of the reply arrived."""
        with self._lock:
            self._num_in_flight -= 1
            if not self._num_in_flight:
                self._idle_since_s = ended_at_s
            self._totals.turns += 1
            self._totals.llm_s += ended_at_s - turn.started_at_s
            self._totals.add_usage(usage)

    def fail(self, turn: OpenTurn) -> None:
        """Close a turn that got no answer: its number and what it carried go to the next request.

        The server takes a repeated number for a retry. An older turn than the newest leaves a
        hole instead, since a later number is out already.
        """
        with self._lock:
            self._num_in_flight -= 1
            self._totals.failed_calls += 1
            if self._last_number == turn.number:
                self._last_number -= 1
            self._is_last_step = self._is_last_step or turn.is_last_step
            if turn.last_tool is not None:
                self._keep_longest(turn.last_tool)

    def begin_tool(self) -> int | None:
        """A measured tool starts; says which turn it follows, None before the first."""
        with self._lock:
            self._num_tools_running += 1
            return self._last_number or None

    def finish_tool(self, text: str, duration_s: float) -> None:
        """A measured tool ended."""
        with self._lock:
            self._num_tools_running -= 1
            self._totals.tool_calls += 1
            self._totals.tool_s += duration_s
            self._keep_longest(ToolTime(text, duration_s))

    def summary(self) -> JobSummary:
        """The totals so far."""
        with self._lock:
            totals = self._totals
            return JobSummary(
                job_id=self._job_id,
                turns=totals.turns,
                failed_calls=totals.failed_calls,
                turns_without_usage=totals.turns_without_usage,
                prompt_tokens=totals.prompt_tokens,
                cached_tokens=totals.cached_tokens,
                output_tokens=totals.output_tokens,
                llm_s=totals.llm_s,
                tool_calls=totals.tool_calls,
                tool_s=totals.tool_s,
                gap_s=totals.gap_s,
            )

    def _keep_longest(self, tool: ToolTime) -> None:
        if self._longest_tool is None or tool.duration_s >= self._longest_tool.duration_s:
            self._longest_tool = tool


@dataclass(slots=True)
class _Totals:
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

    def add_usage(self, usage: Usage | None) -> None:
        if usage is None:
            self.turns_without_usage += 1
            return
        self.prompt_tokens = _sum(self.prompt_tokens, usage.prompt_tokens)
        self.cached_tokens = _sum(self.cached_tokens, usage.cached_tokens)
        self.output_tokens = _sum(self.output_tokens, usage.output_tokens)


def _sum(total: int | None, count: int | None) -> int | None:
    if count is None:
        return total
    return count + (total or 0)


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Totals of one job; `print(summary)` shows them as a small table.

    Token counts are the server's own: None where no reply told, and short by `turns_without_usage`
    turns where some did not (a stream without `include_usage`). Times of overlapping turns add up.
    `tool_s` is what `job.tool(...)` measured. `gap_s` is the time between a reply and the next
    request of the gaps in which nothing was measured: tools and the agent's own work together.
    """

    job_id: str
    turns: int
    failed_calls: int
    turns_without_usage: int
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    llm_s: float
    tool_calls: int
    tool_s: float
    gap_s: float

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
