"""All jobs that the engine remembers, and what a finished turn leaves in the cache.

RetentionManager keeps them. Knows nothing of pins, policies' rules or vLLM; times are seconds on
the caller's monotonic clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.policies.jobs import Job, Turn
from agentkv.policies.pins import Pin

from . import Host


@dataclass(frozen=True, slots=True)
class Context:
    """What a finished turn leaves in the cache: its full blocks, by chained hash.

    `token_ids` are its prompt, of `num_prompt_tokens`, and its reply.
    """

    block_hashes: list[Any]
    num_blocks: int
    block_tokens: int
    token_ids: Sequence[int]
    num_prompt_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_tokens

    def checkpoints(self) -> tuple[tuple[int, object], ...]:
        """Up to 9 (index, hash) pairs of its full blocks, ending at its end."""
        hashes, num_blocks = self.block_hashes, self.num_blocks
        step = max(1, num_blocks // 8)
        indices = sorted({*range(step - 1, num_blocks, step), num_blocks - 1}) if num_blocks else []
        return tuple([(index, hashes[index]) for index in indices if index < len(hashes)])


class JobTable:
    """All jobs remembered, the longest idle first, and their turns; every operation is O(1)."""

    def __init__(self, *, max_jobs: int, lease_s: float) -> None:
        self.turns: dict[str, Turn] = {}
        """Turns in the engine, by request."""
        self._max_jobs = max_jobs
        self._lease_s = lease_s
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def add(self, job: Job) -> None:
        self._jobs[job.job_id] = job

    def touch(self, job: Job, now_s: float) -> None:
        """Note a sign of life: a turn's arrival or end, or a tool signal."""
        job.last_activity_s = now_s
        self._jobs.move_to_end(job.job_id)

    def remove(self, job: Job) -> None:
        self._jobs.pop(job.job_id, None)

    def next_to_forget(self, now_s: float) -> Job | None:
        """The job to forget now: idle beyond its lease, or one too many. None if there is none.

        A job with a request in the engine is never forgotten.
        """
        for job in self._jobs.values():
            if job.live:
                self._jobs.move_to_end(job.job_id)
                return None
            is_over = now_s - job.last_activity_s >= self._lease_s
            return job if is_over or len(self._jobs) > self._max_jobs else None
        return None


class RetainedEngine:
    """The engine as its policy may look at it: an EngineView."""

    def __init__(self, host: Host, jobs: JobTable, pins: Collection[Pin[Any]]) -> None:
        self.num_blocks = host.pool.num_blocks
        self.block_tokens = host.pool.block_tokens
        self.jobs: Iterable[Job] = jobs
        self.turns: Collection[Turn] = jobs.turns.values()
        self.pins = pins
        self.job = jobs.get
        self._host = host

    @property
    def now_s(self) -> float:
        return self._host.clock()

    @property
    def num_free_blocks(self) -> int:
        return self._host.num_free_blocks()
