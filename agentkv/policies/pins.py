"""A pin: the KV blocks kept for a job while its tool runs, and why a pin ends.

The plugin's PinManager begins and ends pins; policies rank them. Blocks are opaque.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

from agentkv.listeners import FreeReason
from agentkv.protocol import JobKey

Block = TypeVar("Block")


PinEnd = Literal[
    "returned",
    "expired",
    "slow",
    "no_tool_call",
    "pressure",
    "last_step",
    "released",
    "lease",
    "aborted",
    "reset",
]
"""Why a pin ended: `reason` of the `unpinned` event and label of `pin_ends_total`."""

MissReason = Literal["pressure", "ttl", "diverged", "released", "reset", "other"]
"""Why a turn computed tokens again: `reason` of a miss and label of `recomputed_tokens_total`."""

PIN_ENDS: tuple[PinEnd, ...] = get_args(PinEnd)
MISS_REASONS: tuple[MissReason, ...] = get_args(MissReason)


class Ending(NamedTuple):
    """Says what one end of a pin means."""

    miss: MissReason | None
    """What a later turn of the job says that finds its tokens gone; None: it found them."""
    free: FreeReason | None
    """What KV listeners hear; None: the job goes on, so they hear nothing."""
    words: str


ENDINGS: Mapping[PinEnd, Ending] = {
    "returned": Ending(None, None, "the job's next turn has its blocks"),
    "expired": Ending("ttl", None, "the TTL is over"),
    "slow": Ending("ttl", None, "the tool was predicted to take too long, so there is no pin"),
    "no_tool_call": Ending("ttl", "no_tool_call", "an inferred job's last reply calls no tool"),
    "pressure": Ending("pressure", None, "another request took the last of the blocks"),
    "last_step": Ending("released", "last_step", "the job's last turn has ended"),
    "released": Ending("released", "released", "the client released the job"),
    "lease": Ending("other", "lease", "the job was idle for too long, or is one too many"),
    "aborted": Ending("other", "aborted", "a turn of the job was aborted, and it has no other"),
    "reset": Ending("reset", None, "vLLM's prefix cache was reset"),
}


@dataclass(slots=True)
class Pin(Generic[Block]):
    """Keeps the blocks of one job's finished turn out of the free queue."""

    job_id: JobKey
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
    is_decided: bool = True
    """What runs is known, or no policy asks for it."""
    doubtful_s: float = math.inf
    """From then on its job has been silent for longer than usual, and may be over."""

    @property
    def ttl_s(self) -> float:
        """Return the TTL in seconds from the end of the turn."""
        return self.expires_s - self.pinned_s
