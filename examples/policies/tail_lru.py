"""The end of each context is given up first, as far as its loss delays the next turn within bounds.

Source: T-LRU (arXiv 2510.15152), as in SGLang PR 34012 and vLLM PR 37825. Of a context of L tokens,
with Q more expected in the next prompt, L + Q - X must stay for the next prefill to compute at most
X tokens. The rest of the tail yields before any head does; then least recent use decides.

Left open: X, which follows from the bound on the time to the first token: here `prefill_s` seconds
at the speed that the engine's steps have taught. Q is the mean growth of prompts over the jobs'
last turns. The freed tail stays in vLLM's cache until somebody takes its blocks.
Not in it: an estimate of Q per conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentkv.policies import (
    TTL,
    AllocationRequest,
    Pin,
    Policy,
    RestoreCost,
    Settings,
    Turn,
)

NEWEST_WEIGHT = 0.05
"""Weight of the last turn in the mean growth of prompts."""


class TailLRUSettings(Settings):
    prefill_s: float = Field(0.05, ge=0)
    """Seconds of prefill that a returning turn may cost."""


class TailLRU(Policy):
    """Holds the head of every context; heads yield by least recent use, their last blocks first."""

    settings_class = TailLRUSettings
    settings: TailLRUSettings
    allows_partial_eviction = True

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.added_tokens = 0.0
        """Q: tokens that the next prompt is expected to add."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until memory runs short")

    def held_tokens(self, cost: RestoreCost) -> float:
        """L + Q - X, at least nothing and at most all."""
        if cost.compute_s <= 0:
            return cost.num_tokens  # nothing is known about speed yet
        may_compute = self.settings.prefill_s * cost.num_tokens / cost.compute_s
        needed = cost.num_tokens + self.added_tokens - may_compute
        return min(max(needed, 0.0), cost.num_tokens)

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        if turn.common_tokens:
            added = turn.num_prompt_tokens - turn.common_tokens
            self.added_tokens += NEWEST_WEIGHT * (added - self.added_tokens)

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        return sorted(pins, key=lambda pin: pin.pinned_s)
