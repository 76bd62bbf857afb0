"""What agentkv saves: tokens not computed because it kept their KV, and tokens computed twice.

`retention.misses` counts, in the engine process, for each job and in all. `/v1/agentkv/stats`,
`/jobs/{id}` and four Prometheus series show the numbers. Knows no blocks, pins or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .counters import CounterName, Counters

MissReason = Literal[
    "pressure",  # another request took the blocks, or the running turn was preempted
    "ttl",  # they were held for less time than the tool took, or not at all
    "diverged",  # the prompt does not repeat what the turn before left
    "released",  # the client had ended the job
    "reset",  # vLLM's prefix cache was reset
    "other",  # a turn was aborted, the job forgotten, or none of these is known
]
"""Why tokens that a turn was expected to find in the cache were computed again."""

MISS_REASONS: tuple[MissReason, ...] = get_args(MissReason)

SAVINGS_SERIES: tuple[CounterName, ...] = (
    "saved_prefill_tokens_total",
    "saved_engine_seconds_total",
    "stock_hit_tokens_total",
    "recomputed_tokens_total",
)
"""The counters of these numbers; `/stats` has them as one object, `savings`."""


@dataclass(slots=True)
class Savings:
    """The sums of one job, or of all."""

    expected_tokens: int = 0
    """Tokens of prompts that earlier turns of the same job had left in the cache."""
    kept_tokens: int = 0
    """Tokens found in the cache that stock would have overwritten by then."""
    kept_engine_s: float = 0.0
    """Seconds of engine time that computing those would have taken."""
    stock_hit_tokens: int = 0
    """Tokens found in the cache that stock would have found, too."""
    recomputed_tokens: dict[MissReason, int] = field(
        default_factory=lambda: dict.fromkeys(MISS_REASONS, 0)
    )

    def as_dict(self) -> dict[str, Any]:
        """Return the sums as plain data."""
        return {
            "expected_tokens": self.expected_tokens,
            "kept_tokens": self.kept_tokens,
            "kept_engine_s": round(self.kept_engine_s, 6),
            "stock_hit_tokens": self.stock_hit_tokens,
            "recomputed_tokens": dict(self.recomputed_tokens),
        }


class SavingsTally:
    """Adds to a job's sums, to those of all jobs and to the Prometheus series."""

    def __init__(self, counters: Counters) -> None:
        self.total = Savings()
        self._counters = counters

    def add_hit(
        self,
        job: Savings,
        expected_tokens: int,
        kept_tokens: int,
        stock_tokens: int,
        kept_engine_s: float,
    ) -> None:
        """Count the tokens that a turn found, and how many it was expected to find."""
        for savings in (job, self.total):
            savings.expected_tokens += expected_tokens
            savings.kept_tokens += kept_tokens
            savings.kept_engine_s += kept_engine_s
            savings.stock_hit_tokens += stock_tokens
        if kept_tokens:
            self._counters.add("saved_prefill_tokens_total", amount=kept_tokens)
            self._counters.add("saved_engine_seconds_total", amount=kept_engine_s)
        if stock_tokens:
            self._counters.add("stock_hit_tokens_total", amount=stock_tokens)

    def add_miss(self, job: Savings, reason: MissReason, num_tokens: int) -> None:
        """Count tokens that are computed again."""
        for savings in (job, self.total):
            savings.recomputed_tokens[reason] += num_tokens
        self._counters.add("recomputed_tokens_total", "reason", reason, num_tokens)
