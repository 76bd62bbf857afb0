"""A pin: the KV blocks that are held for a job while its tool runs, and why one ends.

The plugin's PinManager begins and ends pins; policies rank them. Blocks are opaque.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from agentkv.protocol import client_and_id

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
    def client(self) -> str:
        """The client whose job it is; "" without an API server."""
        return client_and_id(self.job_id)[0]

    @property
    def ttl_s(self) -> float:
        """TTL in seconds from the end of the turn."""
        return self.expires_s - self.pinned_s
