"""All jobs that the engine remembers.

Kept by RetentionManager; times are seconds on the caller's monotonic clock.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from agentkv.policies.jobs import Job, Turn
from agentkv.protocol import JobKey

MAX_SUB_AGENTS = 4
"""Sub-agents that share their parent's place in the queue at a time; a further one is a new job."""
MAX_LOOKED_AT = 64
"""Jobs looked at for one to forget."""


Value = TypeVar("Value")


class FairStore(Generic[Value]):
    """Values by keys that name their client, the oldest first.

    Of more than `most` the oldest of the client that has most leaves, so that nobody pushes out
    what another client has. O(1), or O(clients) if one leaves.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._values: OrderedDict[Any, Value] = OrderedDict()
        self.by_client: dict[str, OrderedDict[Any, Value]] = {}
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Value]:
        return iter(self._values.values())

    def put(self, key: Any, value: Value) -> Value | None:
        """Add a value as the newest, in place of the key's own; returns the one that leaves."""
        self._values[key] = value
        of_client = self.by_client.setdefault(key.client, OrderedDict())
        of_client[key] = value
        self._values.move_to_end(key)
        of_client.move_to_end(key)
        return self.pop(next(iter(self.of_most()))) if len(self._values) > self._most else None

    def of(self, client: str | None) -> OrderedDict[Any, Value]:
        """Return the values of a client, or of all."""
        return self._values if client is None else self.by_client.get(client, OrderedDict())

    def of_most(self) -> OrderedDict[Any, Value]:
        """Return the values of the client that has most."""
        return max(self.by_client.values(), key=len)

    def pop(self, key: Any) -> Value | None:
        value = self._values.pop(key, None)
        if value is not None:
            of_client = self.by_client[key.client]
            del of_client[key]
            if not of_client:
                del self.by_client[key.client]
        return value


class JobTable(FairStore[Job]):
    """Remembers all jobs, the longest idle first, and their turns; operations are O(clients)."""

    def __init__(
        self,
        *,
        max_jobs: int,
        lease_s: float,
        is_pinned: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        super().__init__(math.inf)
        self.turns: dict[str, Turn] = {}
        """Turns in the engine, by request."""
        self._max_jobs = max_jobs
        self._lease_s = lease_s
        self._is_pinned = is_pinned

    def named(self, own_id: str) -> list[Job]:
        """Return the jobs of all clients with this id. O(clients)."""
        found = (self.get(JobKey(client, own_id)) for client in self.by_client)
        return [job for job in found if job is not None]

    def touch(self, job: Job, now_s: float) -> None:
        """Note a sign of life: a turn's arrival or end, or a tool signal."""
        job.last_activity_s = now_s
        self._values.move_to_end(job.job_id)  # each turn passes here: without a call of Python
        self.by_client[job.client].move_to_end(job.job_id)

    def lender(self, parent_id: str, job: Job | None) -> Job | None:
        """Return the job in whose place a sub-agent's stands: its parent's, or that one's lender.

        A parent is another job, of which a turn has run. It lends its place to MAX_SUB_AGENTS at a
        time, of those that wait, run or are pinned.
        """
        parent = self.get(parent_id)
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

    @property
    def next_lease_s(self) -> float:
        """Return when the lease of the longest idle job is over; infinity without one, or while it
        has a request in the engine. O(1)."""
        oldest = next(iter(self), None)
        if oldest is None or oldest.live:
            return math.inf
        return oldest.last_activity_s + self._lease_s

    def may_forget(self, now_s: float) -> bool:
        """Return whether `next_to_forget` may have a job. O(1)."""
        return len(self) > self._max_jobs or now_s >= self.next_lease_s

    def next_to_forget(self, now_s: float) -> Job | None:
        """Return the job to forget now: idle beyond its lease, or one too many; None without one.

        Of too many jobs one of the client that has most goes: of its longest idle the first with a
        single turn and no pin, else the first. A job with a request in the engine is never
        forgotten.
        """
        oldest = next(_idle_among(self), None)
        if oldest is None or now_s - oldest.last_activity_s >= self._lease_s:
            return oldest
        if len(self) <= self._max_jobs:
            return None
        idle = [*_idle_among(self.of_most().values())]
        short = (job for job in idle if job.num_turns <= 1 and not self._is_pinned(job.job_id))
        return next(short, idle[0] if idle else None)


def _idle_among(jobs: Iterable[Job]) -> Iterator[Job]:
    return (job for job in itertools.islice(jobs, MAX_LOOKED_AT) if not job.live)
