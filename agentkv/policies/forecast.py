"""Forecasts the peak KV memory of a set of jobs, each of which goes on as expected.

AdmissionController keeps one and shows it to the policy that is asked about a new job. Knows blocks
only as numbers, and nothing of pins or vLLM.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_TURNS = 128
"""Turns that a forecast looks ahead; later ones do not count."""


class SharedPrefix(NamedTuple):
    """The first blocks of several jobs' contexts, which exist once for all of them."""

    num_blocks: int
    last_hash: object
    """Chained hash of the last of them: where it is equal, all blocks up to there are."""

    @classmethod
    def of(cls, block_hashes: Sequence[object], num_blocks: int) -> SharedPrefix | None:
        """The first `num_blocks` of a context; None for none."""
        return cls(num_blocks, block_hashes[num_blocks - 1]) if num_blocks else None


class JobDemand(NamedTuple):
    """A job's KV in blocks, and how the job is expected to go on."""

    num_blocks: float
    turns_left: float
    blocks_per_turn: float
    is_idle: bool = False
    """No turn of the job runs: its KV is pinned while its tool runs."""
    prefix: SharedPrefix | None = None
    """Those of its blocks that other jobs held, too, when it was last looked at."""

    @property
    def own_blocks(self) -> float:
        """Its blocks without the shared prefix."""
        shared_blocks = 0 if self.prefix is None else self.prefix.num_blocks
        return max(0.0, self.num_blocks - shared_blocks)


@dataclass(slots=True)
class _Sums:
    """The jobs that have the same number of turns left."""

    num_jobs: int = 0
    blocks: float = 0.0
    growth: float = 0.0
    """Blocks that they add a turn."""
    idle_blocks: float = 0.0
    idle_growth: float = 0.0


class KVDemandForecast:
    """Sums the demand of jobs by turns left; a change is O(1), the peak O(numbers of turns left).

    A shared prefix counts once while any job has it, and to the end of the forecast: jobs still to
    come are expected to share it.
    """

    def __init__(self) -> None:
        self._by_job: dict[str, JobDemand] = {}
        self._by_turns: dict[int, _Sums] = {}
        self._num_sharing: Counter[SharedPrefix] = Counter()
        self._shared_blocks = 0

    def put(self, job_id: str, demand: JobDemand) -> None:
        """Add or update a job's KV demand."""
        self.remove(job_id)
        self._by_job[job_id] = demand
        self._add(demand, 1)

    def remove(self, job_id: str) -> None:
        """Remove a job that holds no KV any more, if it is known."""
        demand = self._by_job.pop(job_id, None)
        if demand is not None:
            self._add(demand, -1)

    def _add(self, demand: JobDemand, sign: int) -> None:
        turns = max(0, min(round(demand.turns_left), MAX_TURNS))
        sums = self._by_turns.get(turns) or self._by_turns.setdefault(turns, _Sums())
        sums.num_jobs += sign
        if demand.is_idle:
            sums.idle_blocks += sign * demand.own_blocks
            sums.idle_growth += sign * demand.blocks_per_turn
        else:
            sums.blocks += sign * demand.own_blocks
            sums.growth += sign * demand.blocks_per_turn
        if not sums.num_jobs:
            del self._by_turns[turns]
        if demand.prefix is not None:
            self._share(demand.prefix, sign)

    def _share(self, prefix: SharedPrefix, sign: int) -> None:
        was_counted = prefix in self._num_sharing
        self._num_sharing[prefix] += sign
        if not self._num_sharing[prefix]:
            del self._num_sharing[prefix]
        if was_counted != (prefix in self._num_sharing):
            self._shared_blocks += sign * prefix.num_blocks

    def peak_blocks_with(
        self, newcomer: JobDemand, idle_kv_weight: float = 1.0, horizon_turns: int = MAX_TURNS
    ) -> float:
        """The most blocks that all jobs and one more will hold at once, if all go on turn by turn.

        Idle jobs count by `idle_kv_weight`, and no turn after the next `horizon_turns`. The peak
        lies at that horizon, or just before a job ends, when those that end after it have grown by
        as many turns as it had left.
        """
        own_turns = max(0, min(round(newcomer.turns_left), MAX_TURNS))
        most = blocks = growth = 0.0
        for turns in sorted({*self._by_turns, own_turns}, reverse=True):
            sums = self._by_turns.get(turns)
            if sums is not None:
                blocks += sums.blocks + idle_kv_weight * sums.idle_blocks
                growth += sums.growth + idle_kv_weight * sums.idle_growth
            if turns == own_turns:
                blocks += newcomer.own_blocks
                growth += newcomer.blocks_per_turn
            most = max(most, blocks + growth * min(turns, horizon_turns))
        return self._shared_blocks + most
