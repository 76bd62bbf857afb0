"""A context's priority holds until it has idled for its retention time; then it counts as 0.

Source: SGLang PR 27970 (open when it was read). When memory is taken, the lowest priority goes
first, and of equals the least recently used; a hit starts the time again. It never refuses
memory, unlike the hard pin that was merged there (18941) and taken back (21884).

Left open: where priorities come from; there, from two fields of a request. Here the priority is the
client's (`priority`, where less is more urgent), and the retention time one setting for all. Jobs
without a priority all are alike, and the rule is least recent use.
Not in it: several priorities on a shared prefix, of which the highest counts there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentkv.policies import TTL, AllocationRequest, Pin, Policy, RestoreCost, Settings


class SoftRetentionSettings(Settings):
    retention_s: float = Field(30.0, ge=0)
    """Seconds of idling during which a context's priority counts."""


class SoftRetention(Policy):
    """Holds every context; all yield, those without a claim first."""

    settings_class = SoftRetentionSettings
    settings: SoftRetentionSettings

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until memory runs short")

    def claim(self, pin: Pin[Any]) -> float:
        """The context's priority as it counts now, more for what is kept longer."""
        job = self.engine.job(pin.job_id)
        is_over = self.engine.now_s - pin.pinned_s > self.settings.retention_s
        return 0.0 if job is None or is_over else -float(min(job.priority, 0))

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        return sorted(pins, key=lambda pin: (self.claim(pin), pin.pinned_s))
