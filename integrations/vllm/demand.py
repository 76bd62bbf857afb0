"""What a policy decides about when memory is short: who asks, for how much, and who is there."""

from __future__ import annotations

from dataclasses import dataclass

from .jobs import Turn
from .residents import Resident, Residents


@dataclass(frozen=True, slots=True)
class Demand:
    """An allocation that failed; `turn` is None for a request without a job."""

    turn: Turn | None
    has_blocks: bool
    """It runs, or waits for more blocks than a tier has filled: until it ends nobody gets those."""
    num_running: int
    """Requests that have blocks, it included if it does."""
    missing_blocks: int
    is_due: bool = False
    """It was passed over as often as a newcomer ever is."""
    common_blocks: int = 0
    """Blocks of its own job's pin that it is going to use: to take them frees nothing."""

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else runs that could make room by ending."""
        return self.num_running <= (1 if self.has_blocks else 0)


@dataclass(frozen=True, slots=True)
class Room:
    """The pool as a new job finds it; `newcomer` is what it will be itself, `idle_weight` the part
    of idle KV that is to count (see HoldBalance)."""

    num_blocks: int
    free_blocks: int
    newcomer: Resident
    residents: Residents
    idle_weight: float = 1.0
