"""Memory is taken first from contexts that no turn at the head of the queue will use.

Source: vLLM RFC 48485 and PR 54366. There a shortage looks up what the first waiting turns will
hit in the cache, and takes other free blocks first, both in order of least recent use. Nothing is
pinned and no turn is moved.

Left open: how deep the look goes if fewer turns can run; there, as many turns as may run at once,
here the setting `depth`. Held contexts stand for cached ones, which are looked up by job and not
by block: a prefix shared between jobs is spared only in the context of the job that waits.
Not in it: turns that cannot start for another reason (waiting for a grammar, for loads).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentkv.policies import TTL, AllocationRequest, Pin, Policy, RestoreCost, Settings


class QueueInformedSettings(Settings):
    depth: int = Field(64, ge=0)
    """Waiting turns, from the head on, whose contexts are spared."""


class QueueInformed(Policy):
    """Least recent use, except that waiting turns keep their contexts longest."""

    settings_class = QueueInformedSettings
    settings: QueueInformedSettings

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until memory runs short")

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Unwanted contexts by least recent use, then the wanted ones, the queue's head last."""
        waiting = (turn for turn in self.engine.turns if turn.admitted_s is None)
        head = heapq.nsmallest(self.settings.depth, waiting, key=lambda turn: turn.order)
        places = {turn.job.job_id: -place for place, turn in enumerate(head)}
        unwanted = -len(head) - 1
        return sorted(pins, key=lambda pin: (places.get(pin.job_id, unwanted), pin.pinned_s))
