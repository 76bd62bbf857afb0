"""Numbers the turns of one job, and adds up their times and what servers say of their tokens.

Turns of a job may overlap, so all of it is behind one lock; the clock is an argument.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

MIN_HINT_TOKENS = 512
"""Fewer tokens lost in a job are not worth a hint."""
MAX_FAILED = 64
"""Failed turns that are remembered for their retries."""
TOKEN_COUNTS = (
    *("prompt_tokens", "hit_tokens", "output_tokens"),
    *("later_prompt_tokens", "later_hit_tokens"),
)

logger = logging.getLogger(__name__)

_DURATION = attrgetter("duration_s")


@dataclass(frozen=True, slots=True)
class ToolTime:
    """The duration of a tool, named by its command or else its name."""

    text: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class TaggedTurn:
    """A turn in progress: its number, and what its request reports to the server."""

    number: int
    is_last_step: bool
    last_tool: ToolTime | None
    started_at_s: float
    request: Hashable


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Totals of one job; `print(summary)` shows them as a small table.

    Turns and times are the client's own; times of overlapping turns, and of tools, add up. Token
    counts are the server's, which says them when the job ends: None until then, and where
    `no_tokens` says why they are missing. "Later" turns are all but the first.
    """

    job_id: str
    turns: int = 0
    failed_calls: int = 0
    llm_s: float = 0.0
    tool_calls: int = 0
    tool_s: float = 0.0
    prompt_tokens: int | None = None
    hit_tokens: int | None = None
    """Tokens of prompts that were in the cache."""
    output_tokens: int | None = None
    later_prompt_tokens: int | None = None
    later_hit_tokens: int | None = None
    no_tokens: str | None = None

    @property
    def hit_rate(self) -> float | None:
        """The share of later turns' prompts that was in the cache; None if it is not known."""
        if not self.later_prompt_tokens:
            return None
        return (self.later_hit_tokens or 0) / self.later_prompt_tokens

    def __str__(self) -> str:
        failed = f" ({self.failed_calls:,} failed calls)" if self.failed_calls else ""
        rows = {
            "job": self.job_id,
            "turns": f"{self.turns:,}{failed}",
            "LLM time": f"{self.llm_s:.2f} s",
            "tool time": f"{self.tool_s:.2f} s ({self.tool_calls:,} calls)",
        }
        if self.prompt_tokens is None:
            rows["tokens"] = self.no_tokens or "the server says them when the job has ended"
        else:
            rows["prompt tokens"] = f"{self.prompt_tokens:,}"
            rows["cached tokens"] = f"{self.hit_tokens or 0:,}"
            rows["output tokens"] = f"{self.output_tokens or 0:,}"
        if self.hit_rate is not None:
            rows["later turns"] = f"{self.hit_rate:.0%} of their prompts came from the cache"
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


class TurnLedger:
    """Numbers the turns of a job and adds up their costs. Safe for any number of threads."""

    def __init__(self, job_id: str, *, clock: Callable[[], float]) -> None:
        self._job_id = job_id
        self._clock = clock
        self._lock = threading.Lock()
        self._last_number = 0
        self._num_turns = 0
        """Turns that were answered or are in progress."""
        self._hard_limit: int | None = None
        self._is_last_step = False
        self._longest_tool: ToolTime | None = None
        self._failed: dict[Hashable, list[int]] = {}
        """Numbers of failed turns that were not tried again, by their requests."""
        self._counts: Counter[str] = Counter()
        self._llm_s = self._tool_s = 0.0
        self._tokens: dict[str, Mapping[str, int]] = {}
        self._has_hinted = False

    def mark_last_step(self) -> None:
        """Make the next turn the last step of the job."""
        with self._lock:
            self._is_last_step = True

    def limit_turns(self, num_turns: int) -> None:
        """Make turn number `num_turns` the last step of the job."""
        with self._lock:
            self._hard_limit = num_turns

    def begin(self, request: Hashable = None) -> TaggedTurn:
        """Open the next turn; it carries the longest tool run since the previous turn.

        request: what is the same in a retry. A failed turn's number is for its retry alone: the
        server takes a repeated number for one.
        """
        now_s = self._clock()
        with self._lock:
            number = self._number_of_retry(request)
            if number is None:
                number = self._last_number = self._last_number + 1
            self._num_turns += 1
            is_last_step = self._is_last_step or self._num_turns == self._hard_limit
            turn = TaggedTurn(number, is_last_step, self._longest_tool, now_s, request)
            self._is_last_step, self._longest_tool = False, None
            return turn

    def _number_of_retry(self, request: Hashable) -> int | None:
        numbers = self._failed.get(request)
        if not numbers:
            return None
        if len(numbers) == 1:
            del self._failed[request]
        return numbers.pop(0)

    def finish(self, turn: TaggedTurn) -> None:
        """Close a turn that was answered, now that the last of its reply has arrived."""
        with self._lock:
            self._counts["turns"] += 1
            self._llm_s += self._clock() - turn.started_at_s

    def fail(self, turn: TaggedTurn) -> None:
        """Close a turn without an answer: the next request carries what it carried."""
        with self._lock:
            self._counts["failed_calls"] += 1
            self._num_turns -= 1
            self._failed.setdefault(turn.request, []).append(turn.number)
            if len(self._failed) > MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._is_last_step = self._is_last_step or turn.is_last_step
            self._note_tool(turn.last_tool)

    @property
    def last_number(self) -> int | None:
        """The number of the newest turn; None before the first."""
        return self._last_number or None

    def finish_tool(self, text: str, duration_s: float) -> None:
        """Note that a tool ended."""
        with self._lock:
            self._counts["tool_calls"] += 1
            self._tool_s += duration_s
            self._note_tool(ToolTime(text, duration_s))

    def _note_tool(self, tool: ToolTime | None) -> None:
        tools = filter(None, (tool, self._longest_tool))
        self._longest_tool = max(tools, key=_DURATION, default=None)

    def note_answer(self, root_url: str, answer: object) -> None:
        """Note what a server says of the job's tokens; an answer of another form says nothing.

        Once a job it logs a hint, if more than half of the tokens that should have been in the
        cache were not because the prompt had changed.
        """
        try:
            said: Any = answer["tokens"]  # type: ignore[index]
            tokens = {name: int(said[name]) for name in TOKEN_COUNTS}
            expected, diverged = said["expected_tokens"], said["recomputed_tokens"]["diverged"]
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        with self._lock:
            self._tokens[root_url] = tokens
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

    def summary(self, no_tokens: str | None = None) -> JobSummary:
        """The totals so far; `no_tokens` says why no server has told any tokens."""
        with self._lock:
            said = list(self._tokens.values())
            return JobSummary(
                self._job_id,
                llm_s=self._llm_s,
                tool_s=self._tool_s,
                **self._counts,
                **{name: sum(each[name] for each in said) for name in TOKEN_COUNTS if said},
                no_tokens=None if said else no_tokens,
            )
