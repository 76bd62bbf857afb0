"""How jobs go on, learned from earlier ones, and the peak of KV memory that follows from it.

AdmissionController keeps both, and shows the forecast to the policy that is asked about a new job.
Knows blocks only as numbers, and nothing of pins or vLLM.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median_low
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
        """Return the most blocks that all jobs and one more hold at once, going on turn by turn.

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
"""Jobs, and turns, that are remembered of a kind."""
MAX_CLIENTS, MAX_KINDS = 64, 16
"""Clients, and kinds of jobs of each, that are remembered: those that ended a turn last."""
MIN_JOBS, MIN_TURNS = 4, 16
"""What must be seen of a kind, or of a client, before its jobs go by that alone."""
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


class Experience:
    """Remembers how jobs of one sort went on: lengths, and tokens a turn added, the last WINDOW.

    An observation is O(WINDOW).
    """

    def __init__(self) -> None:
        self._in_order = deque([PRIOR_TURNS])
        self._lengths = [PRIOR_TURNS]
        self.added: deque[int] = deque(maxlen=WINDOW)

    @property
    def knows_lengths(self) -> bool:
        return len(self._lengths) > MIN_JOBS

    @property
    def knows_growth(self) -> bool:
        return len(self.added) >= MIN_TURNS

    def job_ended(self, num_turns: int) -> bool:
        """Record the length of a finished job; True if lengths were known before."""
        knew = len(self._lengths) > MIN_JOBS
        if len(self._in_order) == WINDOW:
            del self._lengths[bisect_left(self._lengths, self._in_order.popleft())]
        self._in_order.append(num_turns)
        insort(self._lengths, num_turns)
        return knew

    def turns_beyond(self, num_turns: int, *, is_of_others: bool) -> float:
        """Return the expected length of a job that has that many turns: the mean of those that
        had more, or if they are other kinds' the median, in which MIN_JOBS + 1 of the prior
        count; as far again beyond the longest."""
        prior = [PRIOR_TURNS] * MIN_JOBS if is_of_others and num_turns < PRIOR_TURNS else []
        rest = self._lengths[bisect_right(self._lengths, num_turns) :] + prior
        if not rest:
            return 2.0 * num_turns - self._lengths[-1]
        return float(median_low(rest)) if is_of_others else sum(rest) / len(rest)

    def tokens_per_turn(self, prior_tokens: float, *, is_of_others: bool) -> float:
        """Return how many tokens a turn is expected to add, likewise."""
        if is_of_others:
            return median_low([*self.added, *[prior_tokens] * (MIN_TURNS + 1)])
        weighed = sum(self.added) + PRIOR_WEIGHT_TURNS * prior_tokens
        return weighed / (len(self.added) + PRIOR_WEIGHT_TURNS)


class JobGrowth:
    """Expects jobs to go on as earlier ones of their client and kind did.

    A kind is known by the start of its prompts. Until a few of its jobs have ended, they are
    expected to go on as the first of the client's other kinds did, and before these are known, as
    the first of other clients: no kind or client teaches others more than a few jobs.
    """

    def __init__(self) -> None:
        self._all = Experience()
        self._clients: OrderedDict[str, OrderedDict[object, Experience]] = OrderedDict()
        """By client and kind; None: the first jobs of each kind, and those without one."""

    def job_ended(self, job: Job) -> None:
        """Record the length of a finished job, up to MAX_TURNS."""
        for each in self._taught_by(job):
            if each.job_ended(min(max(job.num_turns, 1), MAX_TURNS)):
                break

    def turn_ended(self, job: Job, added_tokens: int) -> None:
        """Record by how many tokens a turn lengthened its job's context, unless it is the first:
        that adds its reply alone, later ones a tool's output, too."""
        if job.num_turns == 1:
            return
        for each in self._taught_by(job):
            each.added.append(added_tokens)
            if len(each.added) > MIN_TURNS:
                break

    def _taught_by(self, job: Job) -> list[Experience]:
        """Return what a job teaches, up to the first that knew before: kind, client, all."""
        kinds = self._clients.setdefault(job.client, OrderedDict())
        self._clients.move_to_end(job.client)
        taught = []
        for kind in dict.fromkeys((job.kind, None)):
            taught.append(kinds.get(kind) or kinds.setdefault(kind, Experience()))
            kinds.move_to_end(kind)
        if len(kinds) > MAX_KINDS + 1:
            kinds.popitem(last=False)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        return [*taught, self._all]

    def _known(
        self, client: str, kind: object, knows: Callable[[Experience], bool]
    ) -> tuple[Experience, bool]:
        """Return the experience of a kind, or else of others, and if it is of others."""
        kinds: Mapping[object, Experience] = self._clients.get(client, {})
        for each in (kind, None):
            found = kinds.get(each)
            if found is not None and knows(found):
                return found, each != kind
        return self._all, True

    def mean_turns(self, client: str, kind: object = None, num_turns: int = 0) -> float:
        """Return the expected turns of a whole job of that kind that has `num_turns` already."""
        known, is_of_others = self._known(client, kind, attrgetter("knows_lengths"))
        return known.turns_beyond(num_turns, is_of_others=is_of_others)

    def turns_left(self, job: Job) -> float:
        """Return the expected turns of the job after those that have arrived, at least one.

        The client's `expected_turns` can lower the number but not raise it: no job's claim may
        keep others out.
        """
        expected = self.mean_turns(job.client, job.kind, job.num_turns)
        turns_left = max(1.0, expected - job.num_turns)
        if job.expected_turns is None or job.expected_turns < job.num_turns:
            return turns_left
        return min(turns_left, float(job.expected_turns - job.num_turns))

    def tokens_per_turn(self, job: Job) -> float:
        """Return how many tokens each turn is expected to add to the job's context."""
        prior_tokens = min(PRIOR_TOKENS, PRIOR_SHARE * job.first_prompt_tokens)
        known, is_of_others = self._known(job.client, job.kind, attrgetter("knows_growth"))
        mean_tokens = known.tokens_per_turn(prior_tokens, is_of_others=is_of_others)
        own_tokens = max(0, job.context_tokens - job.first_prompt_tokens)
        own_turns = job.num_turns if job.context_tokens else 0
        weighed = own_tokens + OWN_WEIGHT_TURNS * mean_tokens
        return weighed / (own_turns + OWN_WEIGHT_TURNS)
