"""Begins, changes and ends pins. Each end has one of the reasons of `PinEnd`.

RetentionManager calls it when a turn, a tool signal, a deadline or memory pressure decides about a
pin. Knows nothing of policies or of why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentkv.durations.ttl import TTL

from ..policy.jobs import Job
from ..policy.pins import Pin, PinEnd, PinTable
from ..telemetry import Telemetry
from . import Host


class PinManager:
    """The life of a pin, from a finished turn to its end, by one of the reasons of `PinEnd`."""

    def __init__(self, host: Host, telemetry: Telemetry, *, max_ttl_s: float) -> None:
        """`host` frees blocks and wakes at deadlines; no pin lasts longer than `max_ttl_s`."""
        self.table: PinTable[Any] = PinTable()
        self._host = host
        self._counters = telemetry.counters
        self._events = telemetry.events
        self._max_ttl_s = max_ttl_s

    def pin(
        self,
        job: Job,
        blocks: Sequence[Any],
        fence: int,
        ttl: TTL,
        *,
        num_exclusive_blocks: int,
        is_decided: bool,
    ) -> None:
        """Pin a finished turn's blocks; of two pins of one job the longer context stays.

        A pin that is not decided counts in `pins_total` once a prediction decides it, or it ends.
        """
        now_s = self._host.clock()
        expires_s = now_s + ttl.seconds
        pin = Pin(
            job.job_id, job.order, blocks, fence, now_s, expires_s, num_exclusive_blocks, ttl.reason
        )
        other = self.table.get(job.job_id)
        if other is not None:
            if len(other.blocks) >= len(blocks):
                self._host.free_blocks(pin.blocks, pin.fence)
                other.expires_s = max(other.expires_s, pin.expires_s)
                self.reschedule(other)
                return
            self.end(other, "returned")
        self.table.add(pin)
        self._host.wake_at(pin.expires_s)
        self._events.add(
            job.job_id, "pinned", blocks=len(blocks), ttl_s=round(ttl.seconds, 6), reason=ttl.reason
        )
        if is_decided:
            self._count(pin, None)

    def reprice(
        self, job_id: str, ttl: TTL, *, speed: str | None = None, is_from_now: bool = False
    ) -> None:
        """Give a job's pin, if any, another TTL, counted from when it was pinned or from now.

        `speed` is the predicted one: an undecided pin counts by the first.
        """
        pin = self.table.get(job_id)
        if pin is not None:
            start_s = self._host.clock() if is_from_now else pin.pinned_s
            pin.expires_s = min(start_s + ttl.seconds, pin.pinned_s + self._max_ttl_s)
            pin.reason = ttl.reason
            if speed is not None:
                self._count(pin, speed)
            self.reschedule(pin)

    def _count(self, pin: Pin[Any], speed: str | None) -> None:
        if not pin.is_counted:
            pin.is_counted = True
            self._counters.add("pins_total", "speed", speed or "none")
            self._counters.observe("pin_ttl_seconds", pin.ttl_s)

    def reschedule(self, pin: Pin[Any]) -> None:
        """Schedule a pin's expiry again: it changed, or passed while a turn of the job waited."""
        self.table.reschedule(pin)
        self._host.wake_at(pin.expires_s)

    def end(self, pin: Pin[Any], reason: PinEnd) -> None:
        """Free a pin's blocks, and count and log why."""
        self.table.remove(pin)
        self._host.free_blocks(pin.blocks, pin.fence)
        self._count(pin, None)
        held_s = self._host.clock() - pin.pinned_s
        self._counters.add("pin_ends_total", "reason", reason)
        self._counters.observe("pin_held_seconds", held_s)
        self._events.add(
            pin.job_id,
            "unpinned",
            reason=reason,
            blocks=len(pin.blocks),
            trimmed=pin.num_trimmed,
            held_s=round(held_s, 6),
        )

    def take(self, pin: Pin[Any], num_blocks: int) -> int:
        """Free up to `num_blocks` of a pin's last blocks; returns how many were freed.

        The pin ends with its last block. Only the first cut is logged, since a decoding turn takes
        one block at a time; the `unpinned` event has the sum.
        """
        if num_blocks >= len(pin.blocks):
            num_blocks = len(pin.blocks)
            self.end(pin, "pressure")
            return num_blocks
        self._host.free_blocks(self.table.trim(pin, num_blocks), pin.fence)
        if pin.num_trimmed == num_blocks:
            self._events.add(pin.job_id, "trimmed", blocks=num_blocks, left=len(pin.blocks))
        return num_blocks
