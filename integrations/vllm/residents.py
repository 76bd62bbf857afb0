"""The jobs with KV on the GPU, and the most memory they are expected to hold together.

Knows blocks only as numbers, and nothing of vLLM.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_TURNS = 128
"""A forecast looks so many turns ahead; what a job does after them does not count."""


class Resident(NamedTuple):
    """A job's KV in blocks, and how the job is expected to go on."""

    num_blocks: float
    turns_left: float
    blocks_per_turn: float
    is_idle: bool = False
    """No turn of it runs: its KV is held while its tool does."""


class _Sums:
    """Blocks, and blocks per turn, of jobs by their turns left."""

    def __init__(self) -> None:
        self.num_blocks = [0.0] * (MAX_TURNS + 1)
        self.blocks_per_turn = [0.0] * (MAX_TURNS + 1)

    def add(self, resident: Resident, sign: int) -> None:
        turns = _whole_turns(resident)
        self.num_blocks[turns] += sign * resident.num_blocks
        self.blocks_per_turn[turns] += sign * resident.blocks_per_turn


class Residents:
    """Sums over the jobs by turns left, rounded: each change is O(1), the peak O(MAX_TURNS)."""

    def __init__(self) -> None:
        self._by_job: dict[str, Resident] = {}
        self._idle = _Sums()
        self._active = _Sums()

    def put(self, job_id: str, resident: Resident) -> None:
        """A job is there, or is there in another way than before."""
        self.drop(job_id)
        self._by_job[job_id] = resident
        self._sums_of(resident).add(resident, 1)

    def drop(self, job_id: str) -> None:
        """A job holds no KV any more."""
        resident = self._by_job.pop(job_id, None)
        if resident is not None:
            self._sums_of(resident).add(resident, -1)

    def _sums_of(self, resident: Resident) -> _Sums:
        return self._idle if resident.is_idle else self._active

    def peak_with(self, newcomer: Resident, idle_weight: float = 1.0) -> float:
        """The most blocks ever held together with one job more, if all go on turn by turn; idle
        ones count by `idle_weight`.

        That is reached just before a job ends: when those that end after it have grown by as many
        turns as it had left.
        """
        active, idle = self._active, self._idle
        own_turns = _whole_turns(newcomer)
        most = blocks = growth = 0.0
        for turns in range(MAX_TURNS, -1, -1):
            blocks += active.num_blocks[turns] + idle_weight * idle.num_blocks[turns]
            growth += active.blocks_per_turn[turns] + idle_weight * idle.blocks_per_turn[turns]
            if turns == own_turns:
                blocks += newcomer.num_blocks
                growth += newcomer.blocks_per_turn
            most = max(most, blocks + growth * turns)
        return most


def _whole_turns(resident: Resident) -> int:
    return max(0, min(round(resident.turns_left), MAX_TURNS))
