"""A finished turn is held while that wastes less memory than dropping and recomputing it.

Source: InferCept (arXiv 2402.01869, ICML 2024), waste of preserving and of chunked discarding;
order and modes from WukLab/InferCept @3a1a4da. Waste is tokens x seconds. Holding C tokens for t
seconds wastes t C. Dropping them wastes the prefill T(C) of the own context, half filled on
average, and of all others, which wait meanwhile: T(C) (C/2 + C_other). The paper takes the
elapsed time for the length of the call and compares at each step; that is a TTL of
T(C) / C x (C/2 + C_other) seconds.

Left open, and decided here: C_other is read when the turn ends and again when its tool starts, not
at each step. T is what the engine's own steps have taught, instead of a profile made beforehand.
Not in it: swapping within a step's transfer budget, the split of a prefill by the GPU's
saturation, and the released code's variant that knows each call's length in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.policies import (
    TTL,
    UNPINNED,
    AllocationRequest,
    Decision,
    Pin,
    Policy,
    Rank,
    RestoreCost,
    Turn,
)


class InferCept(Policy):
    """Least waste decides how long to hold; jobs are served in order of their first arrival."""

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.least_waste(cost, self.running_tokens() - cost.num_tokens)

    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """The same with the load as it is once the tool starts; the turn is among the pins now."""
        return Decision(self.least_waste(cost, self.running_tokens()), command)

    def least_waste(self, cost: RestoreCost, other_tokens: float) -> TTL:
        """Hold until holding has wasted as much as dropping would."""
        num_tokens = max(cost.num_tokens, 1)
        waste = cost.compute_s * (num_tokens / 2 + max(0.0, other_tokens))
        return self.capped(waste / num_tokens, f"{max(0.0, other_tokens):.0f} tokens run besides")

    def running_tokens(self) -> float:
        """Tokens in blocks that are in use and not pinned."""
        engine = self.engine
        pinned = sum(pin.num_exclusive_blocks for pin in engine.pins)
        return (engine.num_blocks - engine.num_free_blocks - pinned) * engine.block_tokens

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """By the job's first arrival, in any state that the turn waits in."""
        return (UNPINNED, turn.job.order, turn.order)

    def victim_rank(self, turn: Turn) -> Rank:
        return (UNPINNED, turn.job.order, turn.order)

    def sorts_running(self) -> bool:
        return True

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """The context that wastes least when it is dropped goes first: the shortest."""
        return sorted(pins, key=lambda pin: len(pin.blocks))
