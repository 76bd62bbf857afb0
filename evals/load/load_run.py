"""Starts jobs when they are due and waits for them: at their times, or so many at once.

Knows nothing of servers: playing a job is a function it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from .outcomes import JobOutcome
from .plans import JobPlan, Workload

Play = Callable[[JobPlan], Awaitable[JobOutcome]]


@dataclass(slots=True)
class LoadState:
    """How far a run is, for whoever shows it."""

    num_jobs: int
    arrived: int = 0
    done: int = 0
    failed: int = 0
    cut: int = 0
    max_lag_s: float = 0.0

    @property
    def running(self) -> int:
        return self.arrived - self.done - self.failed - self.cut


class LoadRun:
    """One run; `stop` ends it early, and what runs then is cut.

    `is_alive` is asked after a failed job; where it says no, the run stops: no server, no load.
    """

    def __init__(
        self,
        workload: Workload,
        play: Play,
        *,
        clock: Callable[[], float],
        is_alive: Callable[[], Awaitable[bool]],
    ) -> None:
        self.state = LoadState(len(workload.jobs))
        self.stopped_because: str | None = None
        self._workload = workload
        self._play = play
        self._clock = clock
        self._is_alive = is_alive
        self._stopping = asyncio.Event()
        self._outcomes: list[JobOutcome] = []

    def stop(self, reason: str) -> None:
        """Start no more jobs and cut those that run. The first reason counts."""
        self.stopped_because = self.stopped_because or reason
        self._stopping.set()

    async def run(self) -> tuple[JobOutcome, ...]:
        """All jobs that arrived, in the order of their arrival."""
        starters = self._closed_loop() if self._workload.concurrency else self._open_loop()
        tasks = [asyncio.ensure_future(starter) for starter in starters]
        all_over = asyncio.gather(*tasks, return_exceptions=True)
        stopping = asyncio.ensure_future(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {all_over, stopping}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for task in (*tasks, stopping):
            task.cancel()
        endings = await all_over
        for ending in endings:
            if isinstance(ending, Exception):
                raise ending
        return tuple(sorted(self._outcomes, key=lambda job: (job.arrived_s, job.job_id)))

    def _open_loop(self) -> list[Awaitable[None]]:
        return [self._play_at(job) for job in self._workload.jobs]

    def _closed_loop(self) -> list[Awaitable[None]]:
        """Workers that take one job after the other from the same row."""
        jobs = iter(self._workload.jobs)

        async def work() -> None:
            for job in jobs:
                await self._play_now(job)
                if self._stopping.is_set():
                    break

        return [work() for _ in range(self._workload.concurrency or 0)]

    async def _play_at(self, job: JobPlan) -> None:
        await asyncio.sleep(max(0.0, job.arrival_s - self._clock()))
        self.state.max_lag_s = max(self.state.max_lag_s, self._clock() - job.arrival_s)
        await self._play_now(job)

    async def _play_now(self, job: JobPlan) -> None:
        self.state.arrived += 1
        outcome = await self._play(job)
        self._outcomes.append(outcome)
        setattr(self.state, outcome.status, getattr(self.state, outcome.status) + 1)
        if outcome.status == "failed" and not await self._is_alive():
            self.stop("the server stopped answering")
