"""Begins, moves and ends pins, and tells everyone who must know: queue, timer, counters, record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentkv.ttl import TTL

from .counters import Counters
from .jobs import Job
from .pin_table import Pin, PinEnd, PinTable
from .record import TimestampRecord


class PinKeeper:
    """The life of a pin, from a finished turn to whatever ends it."""

    def __init__(
        self,
        counters: Counters,
        record: TimestampRecord,
        *,
        clock: Callable[[], float],
        free: Callable[[Pin[Any]], None],
        on_rank_change: Callable[[str], None],
        on_deadline: Callable[[float], None],
    ) -> None:
        self.pins: PinTable[Any] = PinTable()
        self._counters = counters
        self._record = record
        self._clock = clock
        self._free = free
        self._on_rank_change = on_rank_change
        self._on_deadline = on_deadline

    def pin(self, job: Job, blocks: Sequence[Any], fence: int, ttl: TTL) -> None:
        """Pin a finished turn's blocks; of two pins of one job the longer context stays."""
        now_s = self._clock()
        pin = Pin(job.job_id, job.order, blocks, fence, now_s, now_s + ttl.seconds, ttl.reason)
        other = self.pins.get(job.job_id)
        if other is not None:
            if len(other.blocks) >= len(blocks):
                self._free(pin)
                other.expires_s = max(other.expires_s, pin.expires_s)
                self.reschedule(other)
                return
            self.end(other, "returned")
        self.pins.add(pin)
        self._on_deadline(pin.expires_s)
        self._on_rank_change(job.job_id)
        self._counters.add("pins_total", "speed", "none")
        self._counters.observe("pin_ttl_seconds", ttl.seconds)
        self._record.add(
            job.job_id, "pinned", blocks=len(blocks), ttl_s=round(ttl.seconds, 6), reason=ttl.reason
        )

    def reprice(self, job_id: str, ttl: TTL) -> None:
        """Give a job's pin another TTL, counted from when it was pinned."""
        pin = self.pins.get(job_id)
        if pin is not None:
            pin.expires_s, pin.reason = pin.pinned_s + ttl.seconds, ttl.reason
            self.reschedule(pin)

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
        self._free(pin)
        held_s = self._clock() - pin.pinned_s
        self._counters.add("pin_ends_total", "reason", reason)
        self._counters.observe("pin_held_seconds", held_s)
        self._record.add(
            pin.job_id, "unpinned", reason=reason, blocks=len(pin.blocks), held_s=round(held_s, 6)
        )
        self._on_rank_change(pin.job_id)

    def end_all(self, reason: PinEnd) -> None:
        """End every pin."""
        for pin in list(self.pins):
            self.end(pin, reason)
