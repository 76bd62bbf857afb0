"""How jobs go on, learned from earlier ones, and the peak of KV memory that follows from it.

AdmissionController keeps both, and shows the forecast to the policy that is asked about a new job.
Knows blocks only as numbers, and nothing of pins or vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .jobs import Job

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
        known = self._by_job.get(job_id)
        if known is not None:
            self._add(known, -1)
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
        shared_blocks = 0 if demand.prefix is None else demand.prefix.num_blocks
        own_blocks = max(0.0, demand.num_blocks - shared_blocks)
        if demand.is_idle:
            sums.idle_blocks += sign * own_blocks
            sums.idle_growth += sign * demand.blocks_per_turn
        else:
            sums.blocks += sign * own_blocks
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


WINDOW = 512
"""Jobs, and turns, that are remembered."""
PRIOR_TURNS = 11
"""Turns of a job while none has ended. Source: 10.9 on SWE-bench, Continuum (arXiv 2511.02230)."""
PRIOR_TOKENS = 500
PRIOR_SHARE = 0.25
"""Tokens that a turn adds while none has ended: this share of the first prompt, up to PRIOR_TOKENS.
Assumed; for scale: of 393 mini-swe-agent runs on SWE-bench Verified half reach 14,000 prompt
tokens, and half take 36 turns or more."""
PRIOR_WEIGHT_TURNS = 16
"""Weight of the prior, in turns seen."""
OWN_WEIGHT_TURNS = 4
"""Turns of its own after which a job's growth weighs as much as the mean of all jobs."""


class JobGrowth:
    """Expects jobs to go on as earlier ones did; an observation is O(WINDOW)."""

    def __init__(self) -> None:
        self._in_order: deque[int] = deque([PRIOR_TURNS])
        self._lengths: list[int] = [PRIOR_TURNS]
        self._sum_turns = PRIOR_TURNS
        self._added: deque[int] = deque(maxlen=WINDOW)
        self._added_tokens = 0

    def job_ended(self, num_turns: int) -> None:
        """Record the length of a finished job, up to MAX_TURNS."""
        num_turns = min(num_turns, MAX_TURNS)
        if len(self._in_order) == WINDOW:
            oldest = self._in_order.popleft()
            del self._lengths[bisect_left(self._lengths, oldest)]
            self._sum_turns -= oldest
        self._in_order.append(num_turns)
        insort(self._lengths, num_turns)
        self._sum_turns += num_turns

    def turn_ended(self, added_tokens: int) -> None:
        """Record by how many tokens a turn lengthened its job's context."""
        if len(self._added) == WINDOW:
            self._added_tokens -= self._added[0]
        self._added.append(added_tokens)
        self._added_tokens += added_tokens

    @property
    def mean_turns(self) -> float:
        """Mean number of turns of a whole job."""
        return self._sum_turns / len(self._lengths)

    def turns_left(self, job: Job) -> float:
        """Expected turns of the job after those that have arrived.

        The client's `expected_turns` can lower the number but not raise it: no job's claim may
        keep others out.
        """
        longer = bisect_right(self._lengths, job.num_turns)
        if longer == len(self._lengths):
            turns_left = float(max(1, job.num_turns - self._lengths[-1]))
        else:
            rest = self._lengths[longer:]
            turns_left = sum(rest) / len(rest) - job.num_turns
        if job.expected_turns is None or job.expected_turns < job.num_turns:
            return turns_left
        return min(turns_left, float(job.expected_turns - job.num_turns))

    def tokens_per_turn(self, job: Job) -> float:
        """Expected number of tokens that each turn adds to the job's context."""
        prior_tokens = min(PRIOR_TOKENS, PRIOR_SHARE * job.first_prompt_tokens)
        mean_tokens = (self._added_tokens + PRIOR_WEIGHT_TURNS * prior_tokens) / (
            len(self._added) + PRIOR_WEIGHT_TURNS
        )
        own_tokens = max(0, job.context_tokens - job.first_prompt_tokens)
        own_turns = job.num_turns if job.context_tokens else 0
        weighed = own_tokens + OWN_WEIGHT_TURNS * mean_tokens
        return weighed / (own_turns + OWN_WEIGHT_TURNS)
