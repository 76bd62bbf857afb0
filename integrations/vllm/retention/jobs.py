"""All jobs that the engine remembers, and the engine as its policy may look at it.

Kept by RetentionManager; times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from agentkv.policies.jobs import Job, Prompt, Turn
from agentkv.policies.pins import Pin

from . import Host

MAX_SUB_AGENTS = 4
"""Sub-agents that share their parent's place in the queue at a time; a further one is a new job."""
MAX_NAMED = 100
"""Jobs of different clients found by one id that they share."""
MAX_SPARED = 64
"""Jobs looked at for one to forget that has had one turn and holds no KV."""


class JobTable:
    """All jobs remembered, the longest idle first, and their turns; operations are O(clients)."""

    def __init__(
        self,
        *,
        max_jobs: int,
        lease_s: float,
        is_pinned: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self.turns: dict[str, Turn] = {}
        """Turns in the engine, by request."""
        self._max_jobs = max_jobs
        self._lease_s = lease_s
        self._is_pinned = is_pinned
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self.get = self._jobs.get
        self._by_client: dict[str, OrderedDict[str, Job]] = {}
        self._by_own_id: dict[str, OrderedDict[str, Job]] = {}
        self._short: dict[str, OrderedDict[str, Job]] = {}
        """Jobs of one turn, by client."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def latest(self, client: str | None) -> Iterator[Job]:
        """The jobs of one client, or of all, the last active first."""
        jobs = self._jobs if client is None else self._by_client.get(client, OrderedDict())
        return reversed(jobs.values())

    def num_of(self, client: str | None) -> int:
        """Jobs of one client, or of all."""
        return len(self._jobs if client is None else self._by_client.get(client, ()))

    def named(self, own_id: str) -> list[Job]:
        """The MAX_NAMED latest jobs of all clients with this id."""
        return [
            *itertools.islice(
                reversed(self._by_own_id.get(own_id, OrderedDict()).values()), MAX_NAMED
            )
        ]

    def repeated(self, job_id: str, prompt: Prompt) -> Job | None:
        """The job with this id if the prompt is again that of its last finished turn."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.is_repeated_by(prompt) else None

    def add(self, job: Job) -> None:
        self._jobs[job.job_id] = job
        self._by_client.setdefault(job.client, OrderedDict())[job.job_id] = job
        self._by_own_id.setdefault(job.own_id, OrderedDict())[job.job_id] = job
        if job.num_turns <= 1:
            self._short.setdefault(job.client, OrderedDict())[job.job_id] = job

    def touch(self, job: Job, now_s: float) -> None:
        """Note a sign of life: a turn's arrival or end, or a tool signal."""
        job.last_activity_s = now_s
        self._jobs.move_to_end(job.job_id)
        self._by_client[job.client].move_to_end(job.job_id)
        short = self._short.get(job.client)
        if short is not None and job.job_id in short:
            if job.num_turns > 1:
                del short[job.job_id]
            else:
                short.move_to_end(job.job_id)

    def lender(self, parent_id: str, job: Job | None) -> Job | None:
        """The job in whose place a sub-agent's stands: that of its parent, or the parent's lender.

        A parent is another job, of which a turn has run. It lends its place to MAX_SUB_AGENTS at a
        time, of those that wait, run or are pinned.
        """
        parent = self._jobs.get(parent_id)
        if parent is None or parent is job or not parent.has_run:
            return None
        if job is not None and (job.lender is not None or job.has_run):
            return job.lender
        return self._free_lender(parent)

    def _free_lender(self, parent: Job) -> Job | None:
        lender = parent.lender or parent
        for job_id, other in list(lender.borrowers.items()):
            if not other.live and not self._is_pinned(job_id):
                del lender.borrowers[job_id]
        return lender if len(lender.borrowers) < MAX_SUB_AGENTS else None

    def lend(self, parent: Job, job: Job) -> bool:
        """Put a job that has not run yet in the place of its parent's; False if that has lent it
        to as many as it may."""
        lender = self._free_lender(parent)
        if lender is None:
            return False
        job.lender, job.order, job.parent_job_id = lender, lender.order, parent.job_id
        lender.borrowers[job.job_id] = job
        return True

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.job_id, None)
        by_name = (self._by_client, job.client), (self._short, job.client)
        for index, name in (*by_name, (self._by_own_id, job.own_id)):
            jobs = index.get(name)
            if jobs is not None:
                jobs.pop(job.job_id, None)
                if not jobs:
                    del index[name]

    @property
    def next_lease_s(self) -> float:
        """When the lease of the longest idle job is over; infinity without one, or while it has a
        request in the engine. O(1)."""
        oldest = next(iter(self._jobs.values()), None)
        if oldest is None or oldest.live:
            return math.inf
        return oldest.last_activity_s + self._lease_s

    def may_forget(self, now_s: float) -> bool:
        """True if `next_to_forget` may have a job. O(1)."""
        if len(self._jobs) > self._max_jobs:
            return True
        oldest = next(iter(self._jobs.values()), None)
        return oldest is not None and now_s - oldest.last_activity_s >= self._lease_s

    def next_to_forget(self, now_s: float) -> Job | None:
        """The job to forget now: idle beyond its lease, or one too many. None if there is none.

        Of too many jobs one of the client that has most goes: one with a single turn and no pin
        if there is any among the longest idle, else the longest idle. A job with a request in the
        engine is never forgotten.
        """
        oldest = self._longest_idle(self._jobs, 1)
        if oldest is not None and now_s - oldest.last_activity_s >= self._lease_s:
            return oldest
        if len(self._jobs) <= self._max_jobs:
            return None
        client, jobs = max(self._by_client.items(), key=lambda entry: len(entry[1]))
        short = self._longest_idle(
            self._short.get(client, OrderedDict()), MAX_SPARED, self._is_pinned
        )
        return short or self._longest_idle(jobs, MAX_SPARED)

    @staticmethod
    def _longest_idle(
        jobs: OrderedDict[str, Job],
        most: int,
        is_spared: Callable[[str], bool] = lambda job_id: False,
    ) -> Job | None:
        """The first of up to `most` jobs without a request in the engine that is not spared."""
        for _ in range(min(most, len(jobs))):
            job = next(iter(jobs.values()))
            if not job.live and not is_spared(job.job_id):
                return job
            jobs.move_to_end(job.job_id)
        return None


class RetainedEngine:
    """The engine as its policy may look at it: an EngineView."""

    def __init__(
        self,
        host: Host,
        jobs: JobTable,
        pins: Collection[Pin[Any]],
        service: Mapping[str, float],
    ) -> None:
        self.num_blocks = host.pool.num_blocks
        self.block_tokens = host.pool.block_tokens
        self.jobs: Iterable[Job] = jobs
        self.turns: Collection[Turn] = jobs.turns.values()
        self.pins = pins
        self.service = service
        self.job = jobs.get
        self._host = host

    @property
    def now_s(self) -> float:
        return self._host.clock()

    @property
    def num_free_blocks(self) -> int:
        return self._host.num_free_blocks()
