"""Bookkeeping of pins: which job holds which blocks, and until when.

PinManager begins and ends pins; policies rank them. Knows nothing of policies or vLLM: blocks are
opaque, and the caller frees them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

Block = TypeVar("Block")

PinEnd = Literal[
    "returned",  # the job's next turn has its blocks
    "expired",  # the TTL is over
    "slow",  # the tool was predicted to take too long: the decision set a TTL of 0
    "forgotten",  # the job's lease is over, or there are more than `max_jobs`
    "pressure",  # another request took the last of its blocks
    "last_step",  # the job's last turn has ended
    "released",  # the client released the job
    "aborted",  # a later turn of the job was aborted
    "reset",  # vLLM's prefix cache was reset
]
"""Why a pin ended: the label `reason` of `pin_ends_total`, and of the `unpinned` event."""


@dataclass(slots=True)
class Pin(Generic[Block]):
    """The blocks of one job's finished turn, kept out of the free queue."""

    job_id: str
    job_order: int
    blocks: Sequence[Block]
    fence: int
    """Scheduler step that must have been processed before the blocks may be reused."""
    pinned_s: float
    expires_s: float
    num_exclusive_blocks: int
    """Blocks that no other request held when they were pinned, so that ending the pin frees them.
    Jobs with the same system prompt share its blocks."""
    reason: str = ""
    """Why its TTL is what it is."""
    num_trimmed: int = 0
    """Blocks taken off its end so far."""
    is_counted: bool = False
    """Counted in `pins_total`: once its TTL is decided, at the latest when it ends."""

    @property
    def ttl_s(self) -> float:
        """TTL in seconds from the end of the turn."""
        return self.expires_s - self.pinned_s


class PinTable(Generic[Block]):
    """At most one pin per job; the next expiry is known in O(1)."""

    def __init__(self) -> None:
        self._pins: dict[str, Pin[Block]] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._holders: Counter[int] = Counter()
        self._newest_first: list[Pin[Block]] | None = None

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[Pin[Block]]:
        return iter(self._pins.values())

    def get(self, job_id: str) -> Pin[Block] | None:
        return self._pins.get(job_id)

    def add(self, pin: Pin[Block]) -> None:
        """Add the pin of a job that has none."""
        assert pin.job_id not in self._pins
        self._pins[pin.job_id] = pin
        self._newest_first = None
        self._holders.update(map(id, pin.blocks))
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
        self._let_go(pin.blocks)

    def trim(self, pin: Pin[Block], num_blocks: int) -> Sequence[Block]:
        """Take the last blocks off a pin, which must keep some, and return them."""
        assert 0 < num_blocks < len(pin.blocks)
        trimmed = pin.blocks[-num_blocks:]
        pin.blocks = pin.blocks[:-num_blocks]
        pin.num_exclusive_blocks = max(0, pin.num_exclusive_blocks - num_blocks)
        pin.num_trimmed += num_blocks
        self._let_go(trimmed)
        return trimmed

    def newest_first(self) -> Sequence[Pin[Block]]:
        """All pins, that of the job that arrived last first. Sorted once between two changes."""
        if self._newest_first is None:
            self._newest_first = sorted(
                self._pins.values(), key=lambda pin: pin.job_order, reverse=True
            )
        return self._newest_first

    def _let_go(self, blocks: Sequence[Block]) -> None:
        for block in map(id, blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]

    @property
    def num_blocks(self) -> int:
        """Blocks pinned by at least one job: jobs that share a prefix share its blocks."""
        return len(self._holders)

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
