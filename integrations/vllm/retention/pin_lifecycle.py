"""Keeps, changes and ends pins. Each end has one of the reasons of `PinEnd`.

RetentionManager calls it when a turn, a tool signal, a deadline or memory pressure decides about a
pin. Knows nothing of policies or of why; blocks are opaque.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, KeysView, Sequence
from typing import Any, Generic

from agentkv.durations.ttl import TTL
from agentkv.policies.jobs import Job
from agentkv.policies.pins import Block, Pin, PinEnd

from ..telemetry import Telemetry
from . import Host
from .misses import TurnHistory


class PinTable(Generic[Block]):
    """At most one pin per job; the next expiry is known in O(1)."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin[Block]] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._holders: Counter[int] = Counter()
        self._holders_of: dict[str, Counter[int]] = {}
        """By client, of pins whose client has a name."""
        self._num_pins_of: Counter[str] = Counter()
        self._newest_first: tuple[Pin[Block], ...] | None = None
        self.num_exclusive_blocks = 0
        """Blocks that nobody else held when they were pinned: of a prefix that jobs share, those of
        the first."""

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin[Block]]:
        return iter(self._pins.values())

    def __contains__(self, pin: object) -> bool:
        return isinstance(pin, Pin) and self._pins.get(pin.job_id) is pin

    def get(self, job_id: str) -> Pin[Block] | None:
        return self._pins.get(job_id)

    def add(self, pin: Pin[Block]) -> None:
        """Add the pin of a job that has none."""
        assert pin.job_id not in self._pins
        self._pins[pin.job_id] = pin
        self._newest_first = None
        self.num_exclusive_blocks += pin.num_exclusive_blocks
        self._holders.update(map(id, pin.blocks))
        self._num_pins_of[pin.client] += 1
        if pin.client:
            self._holders_of.setdefault(pin.client, Counter()).update(map(id, pin.blocks))
        heapq.heappush(self._deadlines, (pin.expires_s, pin.job_id))

    def reschedule(self, pin: Pin[Block]) -> None:
        """Schedule a pin's present `expires_s`.

        Outdated deadlines stay until they surface; once they outnumber the pins the heap is
        rebuilt, so it holds at most about twice as many entries as there are pins.
        """
        heapq.heappush(self._deadlines, (pin.expires_s, pin.job_id))
        if len(self._deadlines) > 2 * len(self._pins) + 64:
            self._deadlines = [(each.expires_s, each.job_id) for each in self]
            heapq.heapify(self._deadlines)

    def remove(self, pin: Pin[Block]) -> None:
        del self._pins[pin.job_id]
        self._newest_first = None
        self.num_exclusive_blocks -= pin.num_exclusive_blocks
        self._let_go(pin, pin.blocks)
        self._num_pins_of[pin.client] -= 1
        if not self._num_pins_of[pin.client]:
            del self._num_pins_of[pin.client]
            self._holders_of.pop(pin.client, None)

    def trim(self, pin: Pin[Block], num_blocks: int) -> Sequence[Block]:
        """Take the last blocks off a pin, which must keep some, and return them."""
        assert 0 < num_blocks < len(pin.blocks)
        trimmed = pin.blocks[-num_blocks:]
        pin.blocks = pin.blocks[:-num_blocks]
        num_freed = min(num_blocks, pin.num_exclusive_blocks)
        pin.num_exclusive_blocks -= num_freed
        self.num_exclusive_blocks -= num_freed
        pin.num_trimmed += num_blocks
        self._let_go(pin, trimmed)
        return trimmed

    def newest_first(self) -> Sequence[Pin[Block]]:
        """All pins, that of the job that arrived last first. Sorted once between two changes."""
        if self._newest_first is None:
            pins = sorted(self._pins.values(), key=lambda pin: pin.job_order, reverse=True)
            self._newest_first = tuple(pins)  # policies get it, and must not change it
        return self._newest_first

    def _let_go(self, pin: Pin[Block], blocks: Sequence[Block]) -> None:
        of_client = self._holders_of.get(pin.client)
        for holders in [self._holders] if of_client is None else [self._holders, of_client]:
            for block in map(id, blocks):
                holders[block] -= 1
                if not holders[block]:
                    del holders[block]

    @property
    def num_blocks(self) -> int:
        """Blocks pinned by at least one job: jobs that share a prefix share its blocks."""
        return len(self._holders)

    @property
    def clients(self) -> KeysView[str]:
        """Clients that have pins."""
        return self._num_pins_of.keys()

    def num_blocks_of(self, client: str) -> int:
        """Blocks pinned by at least one job of a client."""
        if client:
            return len(self._holders_of.get(client, ()))
        return sum(len(pin.blocks) for pin in self if not pin.client)

    @property
    def next_expiry_s(self) -> float | None:
        """Time of the earliest expiry still to come; None without pins. Amortised O(log pins)."""
        while self._deadlines:
            expires_s, job_id = self._deadlines[0]
            pin = self._pins.get(job_id)
            if pin is not None and pin.expires_s == expires_s:
                return expires_s
            heapq.heappop(self._deadlines)
        return None

    def pop_due(self, now_s: float) -> Pin[Block] | None:
        """Take the next deadline that has passed off the schedule; the pin itself stays."""
        expires_s = self.next_expiry_s
        if expires_s is None or expires_s > now_s:
            return None
        return self._pins[heapq.heappop(self._deadlines)[1]]


class PinManager:
    """The life of a pin, from a finished turn to its end, by one of the reasons of `PinEnd`."""

    def __init__(
        self, host: Host, telemetry: Telemetry, history: TurnHistory, *, max_ttl_s: float
    ) -> None:
        """`host` frees blocks and wakes at deadlines; no pin lasts longer than `max_ttl_s`."""
        self.table: PinTable[Any] = PinTable()
        self._host = host
        self._counters = telemetry.counters
        self._events = telemetry.events
        self._history = history
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

    def end(self, pin: Pin[Any], reason: PinEnd, taken_by: str | None = None) -> None:
        """Free a pin's blocks, and count and log why."""
        self.table.remove(pin)
        self._history.pin_ended(pin, reason, taken_by)
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

    def take(self, pin: Pin[Any], num_blocks: int, taken_by: str | None = None) -> int:
        """Free up to `num_blocks` of a pin's last blocks; returns how many were freed.

        `taken_by` is the key of the job that needs them, "" for a request without one.

        The pin ends with its last block. Only the first cut is logged, since a decoding turn takes
        one block at a time; the `unpinned` event has the sum.
        """
        if num_blocks >= len(pin.blocks):
            num_blocks = len(pin.blocks)
            self.end(pin, "pressure", taken_by)
            return num_blocks
        if taken_by is not None:
            self._history.pin_ended(pin, "pressure", taken_by)
        self._host.free_blocks(self.table.trim(pin, num_blocks), pin.fence)
        if pin.num_trimmed == num_blocks:
            self._events.add(pin.job_id, "trimmed", blocks=num_blocks, left=len(pin.blocks))
        return num_blocks
