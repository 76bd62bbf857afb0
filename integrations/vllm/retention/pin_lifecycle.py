"""Begins, moves and ends pins, and tells everyone who must know: queue, timer, counters, record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentkv.durations.ttl import TTL

from ..policy.jobs import Job
from ..policy.pins import Pin, PinEnd, PinTable
from ..telemetry.counters import Counters
from ..telemetry.event_log import TimestampRecord


class PinKeeper:
    """The life of a pin, from a finished turn to whatever ends it."""

    def __init__(
        self,
        counters: Counters,
        record: TimestampRecord,
        *,
        clock: Callable[[], float],
        free: Callable[[Sequence[Any], int], None],
        on_change: Callable[[str], None],
        on_deadline: Callable[[float], None],
        max_ttl_s: float,
    ) -> None:
        self._max_ttl_s = max_ttl_s
        self.pins: PinTable[Any] = PinTable()
        self._counters = counters
        self._record = record
        self._clock = clock
        self._free = free
        self._on_change = on_change
        self._on_deadline = on_deadline

    def pin(
        self,
        job: Job,
        blocks: Sequence[Any],
        fence: int,
        ttl: TTL,
        *,
        num_own_blocks: int,
        is_decided: bool = True,
    ) -> None:
        """Pin a finished turn's blocks; of two pins of one job the longer context stays.

        A pin that is not decided counts when a prediction decides it, or when it ends.
        """
        now_s = self._clock()
        expires_s = now_s + ttl.seconds
        pin = Pin(
            job.job_id, job.order, blocks, fence, now_s, expires_s, num_own_blocks, ttl.reason
        )
        other = self.pins.get(job.job_id)
        if other is not None:
            if len(other.blocks) >= len(blocks):
                self._free(pin.blocks, pin.fence)
                other.expires_s = max(other.expires_s, pin.expires_s)
                self.reschedule(other)
                return
            self.end(other, "returned")
        self.pins.add(pin)
        self._on_deadline(pin.expires_s)
        self._on_change(job.job_id)
        self._record.add(
            job.job_id, "pinned", blocks=len(blocks), ttl_s=round(ttl.seconds, 6), reason=ttl.reason
        )
        if is_decided:
            self._count(pin, None)

    def reprice(
        self, job_id: str, ttl: TTL, *, speed: str | None = None, is_from_now: bool = False
    ) -> None:
        """Give a job's pin another TTL, counted from when it was pinned or from now.

        `speed` is what was predicted, if anything: by the first one an undecided pin counts.
        """
        pin = self.pins.get(job_id)
        if pin is not None:
            start_s = self._clock() if is_from_now else pin.pinned_s
            pin.expires_s = min(start_s + ttl.seconds, pin.pinned_s + self._max_ttl_s)
            pin.reason = ttl.reason
            if speed is not None:
                self._count(pin, speed)
            self.reschedule(pin)

    def _count(self, pin: Pin[Any], speed: str | None) -> None:
        if not pin.is_counted:
            pin.is_counted = True
            self._counters.add("pins_total", "speed", speed or "none")
            self._counters.observe("pin_ttl_seconds", pin.expires_s - pin.pinned_s)

    def reschedule(self, pin: Pin[Any]) -> None:
        """Put a pin's expiry on the schedule: it changed, or went by while a turn was live."""
        self.pins.reschedule(pin)
        self._on_deadline(pin.expires_s)

    def pop_due(self) -> Pin[Any] | None:
        """A pin whose TTL is over, taken off the schedule; None if there is none."""
        return self.pins.pop_due(self._clock())

    def end(self, pin: Pin[Any], reason: PinEnd) -> None:
        """Give a pin's blocks back and say why."""
        self.pins.remove(pin)
        self._free(pin.blocks, pin.fence)
        self._count(pin, None)
        held_s = self._clock() - pin.pinned_s
        self._counters.add("pin_ends_total", "reason", reason)
        self._counters.observe("pin_held_seconds", held_s)
        self._record.add(
            pin.job_id,
            "unpinned",
            reason=reason,
            blocks=len(pin.blocks),
            trimmed=pin.num_trimmed,
            held_s=round(held_s, 6),
        )
        self._on_change(pin.job_id)

    def take(self, pin: Pin[Any], num_blocks: int) -> int:
        """Give up to so many of a pin's last blocks back; answers how many. With its last block
        the pin ends.

        Only the first cut is an event: a turn that decodes takes one block at a time. `unpinned`
        has the sum.
        """
        if num_blocks >= len(pin.blocks):
            num_blocks = len(pin.blocks)
            self.end(pin, "pressure")
            return num_blocks
        self._free(self.pins.trim(pin, num_blocks), pin.fence)
        if pin.num_trimmed == num_blocks:
            self._record.add(pin.job_id, "trimmed", blocks=num_blocks, left=len(pin.blocks))
        self._on_change(pin.job_id)
        return num_blocks

    def end_all(self, reason: PinEnd) -> None:
        """End every pin."""
        for pin in list(self.pins):
            self.end(pin, reason)
