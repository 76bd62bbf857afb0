"""Keeps, changes and ends pins; each end has one of the reasons of `PinEnd`.

RetentionManager calls it when a turn, a tool signal, a deadline or memory pressure decides about a
pin. Blocks are opaque.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, KeysView, Sequence
from typing import Any, Generic

from agentkv.durations.ttl import TTL
from agentkv.events import Pinned, Trimmed, Unpinned
from agentkv.policies.jobs import Job
from agentkv.policies.pins import Block, Pin, PinEnd
from agentkv.watchers import EventStream

from . import Host
from .jobs import JobTable


class PinTable(Generic[Block]):
    """Holds at most one pin per job; the next expiry is known in O(1)."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin[Block]] = {}
        self.get = self._pins.get
        self._deadlines: list[tuple[float, str]] = []
        self._holders: Counter[int] = Counter()
        self._of_client: dict[str, dict[str, Pin[Block]]] = {}
        self._num_blocks_of: dict[str, int] = {}
        """Of clients whose pins have not changed since somebody asked."""
        self.clients: KeysView[str] = self._of_client.keys()
        """Clients that have pins."""
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

    def add(self, pin: Pin[Block]) -> None:
        """Add the pin of a job that has none."""
        assert pin.job_id not in self._pins
        self._pins[pin.job_id] = pin
        self._newest_first = None
        self.num_exclusive_blocks += pin.num_exclusive_blocks
        self._holders.update(map(id, pin.blocks))
        self._num_blocks_of.pop(pin.job_id.client, None)
        self._of_client.setdefault(pin.job_id.client, {})[pin.job_id] = pin
        heapq.heappush(self._deadlines, (pin.expires_s, pin.job_id))

    def reschedule(self, pin: Pin[Block]) -> None:
        """Schedule the end of a pin at its present `expires_s`.

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
        of_client = self._of_client[pin.job_id.client]
        del of_client[pin.job_id]
        if not of_client:
            del self._of_client[pin.job_id.client]

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
        """Return all pins, that of the newest job first. Sorted once between two changes."""
        if self._newest_first is None:
            pins = sorted(self._pins.values(), key=lambda pin: pin.job_order, reverse=True)
            self._newest_first = tuple(pins)  # policies get it, and must not change it
        return self._newest_first

    def _let_go(self, pin: Pin[Block], blocks: Sequence[Block]) -> None:
        self._num_blocks_of.pop(pin.job_id.client, None)
        holders = self._holders
        for block in map(id, blocks):
            if holders[block] == 1:
                holders.pop(block)  # Counter's own `del` is Python, 6,000 times for 100k tokens
            else:
                holders[block] -= 1

    @property
    def num_blocks(self) -> int:
        """Blocks pinned by at least one job: jobs that share a prefix share its blocks."""
        return len(self._holders)

    def num_blocks_of(self, client: str) -> int:
        """Count the blocks pinned by at least one job of a client. O(1) unless they changed."""
        if client in self._of_client and client not in self._num_blocks_of:
            pins = self._of_client[client].values()
            self._num_blocks_of[client] = len({id(block) for pin in pins for block in pin.blocks})
        return self._num_blocks_of.get(client, 0)

    @property
    def next_expiry_s(self) -> float | None:
        """Return when the next pin expires; None without pins. Amortised O(log pins)."""
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
    """Begins, changes and ends pins, from a finished turn on."""

    def __init__(
        self, host: Host, jobs: JobTable, stream: EventStream, *, max_ttl_s: float
    ) -> None:
        """`host` frees blocks and wakes at deadlines; no pin lasts longer than `max_ttl_s`."""
        self.table: PinTable[Any] = PinTable()
        self._host = host
        self._jobs = jobs
        self._emit = stream.emit
        self._max_ttl_s = max_ttl_s

    def pin(self, job: Job, pin: Pin[Any]) -> bool:
        """Pin a finished turn's blocks; of two pins of one job the longer context stays.

        Returns False if that is the one before.
        """
        other = self.table.get(job.job_id)
        if other is not None:
            if len(other.blocks) >= len(pin.blocks):
                self._host.free_blocks(pin.blocks, pin.fence)
                other.expires_s = max(other.expires_s, pin.expires_s)
                self.reschedule(other)
                return False
            self.end(other, "returned")
        self.table.add(pin)
        self._host.wake_at(pin.expires_s)
        ttl_s = round(pin.expires_s - pin.pinned_s, 6)
        self._emit(Pinned, job.job_id, pin, len(pin.blocks), ttl_s)
        return True

    def reprice(self, pin: Pin[Any], ttl: TTL, *, is_from_now: bool = False) -> None:
        """Give a pin another TTL, counted from when it was pinned or from now."""
        start_s = self._host.clock() if is_from_now else pin.pinned_s
        job = self._jobs.get(pin.job_id)
        most_s = self._max_ttl_s if job is None else min(self._max_ttl_s, job.max_ttl_s)
        pin.expires_s = min(start_s + ttl.seconds, pin.pinned_s + most_s)
        pin.reason = ttl.reason
        self.reschedule(pin)

    def reschedule(self, pin: Pin[Any]) -> None:
        """Schedule a pin's expiry again: it changed, or passed while the job's turn waited."""
        self.table.reschedule(pin)
        self._host.wake_at(pin.expires_s)

    def end(self, pin: Pin[Any], reason: PinEnd, taken_by: str | None = None) -> None:
        """Free a pin's blocks and say why; `taken_by` as of `take`."""
        self.table.remove(pin)
        self._host.free_blocks(pin.blocks, pin.fence)
        job = self._jobs.get(pin.job_id)
        if job is not None:
            job.pin_end = reason
        held_s = round(self._host.clock() - pin.pinned_s, 6)
        self._emit(Unpinned, pin.job_id, pin, reason, len(pin.blocks), held_s, taken_by)

    def take(self, pin: Pin[Any], num_blocks: int, taken_by: str | None = None) -> int:
        """Free up to `num_blocks` of a pin's last blocks; returns how many were freed.

        `taken_by` is the key of the job that needs them, "" for a request without one. The pin ends
        with its last block.
        """
        if num_blocks >= len(pin.blocks):
            num_blocks = len(pin.blocks)
            self.end(pin, "pressure", taken_by)
            return num_blocks
        self._host.free_blocks(self.table.trim(pin, num_blocks), pin.fence)
        self._emit(Trimmed, pin.job_id, pin, num_blocks, len(pin.blocks), taken_by)
        return num_blocks
