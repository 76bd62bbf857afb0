"""How jobs are started and how a run ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from agentkv.evals.outcomes import JobOutcome, JobStatus
from agentkv.evals.player.run import LoadRun
from agentkv.evals.workload.plans import JobPlan, Steps, TurnPlan, Workload
from tests.evals.made_runs import job as made_job

PLAN = (TurnPlan(10, 1, "", 0.0),)

Scenario = Callable[[LoadRun], Awaitable[None]]


def workload(
    *arrivals_s: float, concurrency: int | None = None, steps: Steps | None = None
) -> Workload:
    jobs = tuple(JobPlan(str(number), time_s, PLAN) for number, time_s in enumerate(arrivals_s))
    return Workload("test", 0, jobs, concurrency, steps)


def play_all(
    planned: Workload,
    job_s: float = 0.0,
    *,
    endings: dict[str, JobStatus] | None = None,
    is_alive: bool = True,
    scenario: Scenario | None = None,
) -> tuple[LoadRun, tuple[JobOutcome, ...], list[int]]:
    """The run, what became of its jobs, and how many ran at each start."""
    playing: set[str] = set()
    at_once: list[int] = []

    async def play_them() -> tuple[LoadRun, tuple[JobOutcome, ...]]:
        start_s = time.monotonic()

        async def play(plan: JobPlan) -> JobOutcome:
            playing.add(plan.job_id)
            at_once.append(len(playing))
            arrived_s = time.monotonic() - start_s
            status = (endings or {}).get(plan.job_id, "done")
            try:
                await asyncio.sleep(job_s)
            except asyncio.CancelledError:
                status = "cut"
            playing.remove(plan.job_id)
            return made_job(plan.job_id, start_s=arrived_s, status=status)

        async def answer() -> bool:
            return is_alive

        run = LoadRun(planned, play, clock=lambda: time.monotonic() - start_s, is_alive=answer)
        over = asyncio.ensure_future(run.run())
        if scenario is not None:
            await scenario(run)
        return run, await asyncio.wait_for(over, 10)

    run, jobs = asyncio.run(play_them())
    return run, jobs, at_once


def test_a_closed_loop_keeps_its_number_of_jobs_running() -> None:
    """Never more than two of five jobs run, and each of them is played."""
    _, jobs, at_once = play_all(workload(*[0.0] * 5, concurrency=2), job_s=0.02)
    assert sorted(job.job_id for job in jobs) == list("01234")
    assert max(at_once) == 2


def test_a_step_waits_for_the_last_of_the_step_before() -> None:
    """All jobs of a step run at once, and none of the next until they have ended."""
    _, jobs, at_once = play_all(
        workload(*[0.0] * 5, concurrency=2, steps="synchronous"), job_s=0.02
    )
    assert [job.job_id for job in jobs] == list("01234")
    assert at_once == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(("concurrency", "steps"), [(None, None), (2, None), (2, "synchronous")])
def test_stopping_cuts_what_runs_and_starts_nothing_more(
    concurrency: int | None, steps: Steps | None
) -> None:
    """Jobs that had arrived are cut, and the others never start."""
    planned = workload(0.0, 0.0, 60.0, 60.0, concurrency=concurrency, steps=steps)

    async def stop_soon(run: LoadRun) -> None:
        await asyncio.sleep(0.1)
        run.stop("enough")
        run.stop("a later reason")

    run, jobs, _ = play_all(planned, job_s=60.0, scenario=stop_soon)
    assert [job.status for job in jobs] == ["cut", "cut"]
    assert run.stopped_because == "enough"
    assert run.progress() == "2 of 4 arrived, 0 running, 0 done, 2 cut"


def test_a_failed_job_stops_the_run_only_if_the_server_is_gone() -> None:
    """After a failed job the others are played if the server still listens."""
    planned = workload(0.0, 0.1)
    run, jobs, _ = play_all(planned, endings={"0": "failed"})
    assert [job.status for job in jobs] == ["failed", "done"]
    run, jobs, _ = play_all(planned, endings={"0": "failed"}, is_alive=False)
    assert [job.status for job in jobs] == ["failed"]
    assert run.stopped_because == "the server stopped answering"
