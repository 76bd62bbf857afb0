"""Under pressure the job whose tool is expected to run longest loses its KV first.

Source: CacheWise (arXiv 2606.16824), its order of turns and its survival eviction. A waiting turn
goes first if it needs the fewest blocks that are not cached. Of held contexts the one with the
largest E[T - t | T > t] is given up, t seconds after its tool began, from how long tools have run.

The source's order starves: a turn waits as long as smaller ones arrive, and a preempted one too. So
a preempted turn goes first here, as in vLLM, and one that has waited for `patience_s` (300 s) is
served by arrival, as requests without a job are, which stand before all younger turns.

Left open: after a call longer than any seen, it is expected to take as long again. Survival is
counted per tool, the first word of the command, from the last 256 calls; a tool that was never seen
counts as the mean of all. The paper groups a tool's calls by their arguments, up to 100 groups; the
released fork (cachewise-project/vllm @bcb1cf6) scores a hash of them, or an oracle.
Not in it: jobs that wait for a person (nobody says so), and scores refreshed every third step; here
they are computed whenever memory runs short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentkv.policies import (
    PREEMPTED,
    TTL,
    UNPINNED,
    AllocationRequest,
    Pin,
    Policy,
    Rank,
    RestoreCost,
    Settings,
    Turn,
)


class CacheWiseSettings(Settings):
    patience_s: float = Field(300.0, gt=0, le=86_400)


class CacheWise(Policy):
    """Holds every context; the one expected back last yields first."""

    settings_class = CacheWiseSettings

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until memory runs short")

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Turns with few tokens to compute go first; without a pin nothing counts as cached."""
        if is_preempted or turn.has_aged_out:
            return (PREEMPTED if is_preempted else UNPINNED, turn.order, 0)
        cached_tokens = turn.common_tokens if is_pinned else 0
        return (UNPINNED + 1, turn.num_prompt_tokens - cached_tokens, turn.order)

    def expected_left_s(self, pin: Pin[Any]) -> float:
        """Seconds until the job's next turn; 0 if that waits already."""
        job, durations = self.engine.job(pin.job_id), self.learned.durations
        if job is None or job.live:
            return 0.0
        window = durations.of(job.tool) or durations.over_all
        return window.expected_left_s(self.engine.now_s - pin.pinned_s)

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        return sorted(pins, key=self.expected_left_s, reverse=True)
