"""What a policy decides about when memory is short: who asks, for how much, and who is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .jobs import Turn
from .residents import Resident, Residents


class Rebuild(NamedTuple):
    """What it takes to have a context again: `seconds` to compute it anew; from a tier `load_s` to
    load it, and of what leaves the GPU it gives back `loaded_share` (0: there is none).
    A second of computing is worth `worth` seconds of the whole pool (see StepFit). `step_s` is what
    a step takes for however little."""

    num_tokens: int
    seconds: float
    load_s: float = 0.0
    loaded_share: float = 0.0
    worth: float = 1.0
    step_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds that it takes to compute it with nothing beside it."""
        return self.step_s + self.seconds

    @property
    def pool_s(self) -> float:
        """What computing it anew costs, in seconds of the whole pool."""
        return self.seconds * self.worth


@dataclass(frozen=True, slots=True)
class Demand:
    """An allocation that failed; `turn` is None for a request without a job."""

    turn: Turn | None
    is_running: bool
    num_running: int
    missing_blocks: int
    is_due: bool = False
    """It was passed over as often as a newcomer ever is."""
    common_blocks: int = 0
    """Blocks of its own job's pin that it is going to use: to take them frees nothing."""

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else runs that could make room by ending."""
        return self.num_running <= (1 if self.is_running else 0)


@dataclass(frozen=True, slots=True)
class Room:
    """The pool as a new job finds it; `newcomer` is what it will be itself, `idle_weight` the part
    of idle KV that is to count (see HoldBalance)."""

    num_blocks: int
    free_blocks: int
    newcomer: Resident
    residents: Residents
    idle_weight: float = 1.0
