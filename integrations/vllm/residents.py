"""The jobs with KV on the GPU, and the most memory they are expected to hold together.

Knows blocks only as numbers, and nothing of vLLM.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .job_growth import MAX_TURNS, JobLengths

_ROWS = MAX_TURNS + 1
_AHEAD = np.arange(MAX_TURNS + 1)
_AS_TOLD = (_AHEAD[:, None] >= _AHEAD).astype(float)
"""Whether a job that says how many turns it has left has one so many turns ahead."""


class Resident(NamedTuple):
    """A job's KV in blocks, and how the job is expected to go on: `turn`, counted from 1, is the
    one it is in or comes to next; `turns_left` after that is None where the client does not say."""

    num_blocks: float
    blocks_per_turn: float
    turn: int
    turns_left: int | None = None

    @property
    def row(self) -> int:
        """Of the table of odds: first those by turn, then those by turns left."""
        if self.turns_left is None:
            return min(self.turn, MAX_TURNS)
        return _ROWS + min(self.turns_left, MAX_TURNS)


class Residents:
    """Sums over the jobs by their rows of the odds: a change is O(1), and the peak a product of
    small matrices, whatever the number of jobs."""

    def __init__(self, lengths: JobLengths) -> None:
        self._lengths = lengths
        self._by_job: dict[str, Resident] = {}
        self._held = np.zeros((2, 2 * _ROWS))

    def __len__(self) -> int:
        return len(self._by_job)

    def put(self, job_id: str, resident: Resident) -> None:
        """A job is there, or is there in another way than before."""
        self.drop(job_id)
        self._by_job[job_id] = resident
        _add(self._held, resident, 1)

    def drop(self, job_id: str) -> None:
        """A job holds no KV any more."""
        resident = self._by_job.pop(job_id, None)
        if resident is not None:
            _add(self._held, resident, -1)

    def peak_with(self, newcomer: Resident) -> float:
        """The most blocks expected to be held together with one job more, at any number of turns
        from now, if all go on turn by turn: a job's growing KV counts by how likely the job is to
        be there then."""
        held = self._held.copy()
        _add(held, newcomer, 1)
        of_learned, of_told = held[:, :_ROWS], held[:, _ROWS:]
        blocks, growth = of_learned @ self._lengths.odds + of_told @ _AS_TOLD
        return float((blocks + growth * (_AHEAD + 1)).max())


def _add(held: Any, resident: Resident, sign: int) -> None:
    row = resident.row
    held[0, row] += sign * resident.num_blocks
    held[1, row] += sign * resident.blocks_per_turn
