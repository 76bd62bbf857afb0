"""Several engines on one virtual time: turns are played once, at exact times, failures or not."""

from __future__ import annotations

import pytest

from agentkv.errors import InputError
from agentkv.evals.simulator.machine import Failure, check_failures, parse_failure
from agentkv.evals.simulator.routers import ROUTERS
from agentkv.evals.simulator.run import SimulatedRun
from agentkv.evals.workload.plans import Workload

from .simulated import durations, job, random_jobs, simulate

BUSY = random_jobs(40)
"""More than one pool of `machine()` holds at once."""
NUM_TURNS = sum(len(plan.turns) for plan in BUSY.jobs)


def check_all_done(run: SimulatedRun) -> None:
    plans = {plan.job_id: plan for plan in BUSY.jobs}
    assert sorted(job.job_id for job in run.jobs) == sorted(plans)
    for outcome in run.jobs:
        assert outcome.status == "done"
        assert len(outcome.turns) == len(plans[outcome.job_id].turns)
        assert abs(outcome.parts["other_s"]) < 0.001


@pytest.mark.parametrize("router", ROUTERS)
def test_every_turn_is_played_once(router: str) -> None:
    """Behind each router all jobs end with all turns, and a sticky one moves none."""
    simulation, run = simulate(BUSY, "fcfs", num_engines=3, router=router)
    check_all_done(run)
    assert sum(run.counters["turns_by_engine"]) == NUM_TURNS
    assert min(run.counters["turns_by_engine"]) > NUM_TURNS / 6
    if router == "sticky":
        assert run.counters["moved_turns"] == 0
    if router in ("round-robin", "least-loaded"):
        assert run.counters["moved_turns"] > NUM_TURNS / 4
    engines = simulation.fleet.engines
    assert [engine.num_free_blocks for engine in engines] == [199, 199, 199]


@pytest.mark.parametrize("policy", ["fcfs", "continuum:released"])
def test_jumps_change_nothing_with_several_engines(policy: str) -> None:
    """Jumps that an arrival ends give every job the duration of single steps, to rounding."""
    options = {"num_engines": 3, "router": "least-loaded"}
    _, jumping = simulate(BUSY, policy, **options)
    _, stepping = simulate(BUSY, policy, **options, has_jumps=False)
    assert durations(jumping) == pytest.approx(durations(stepping), rel=0, abs=1e-9)
    assert jumping.counters["turns_by_engine"] == stepping.counters["turns_by_engine"]
    assert jumping.counters["steps"] < stepping.counters["steps"] / 2


def test_two_engines_are_two_machines() -> None:
    """Jobs that alternate between two engines take as long as half of them on one alone."""
    plans = [job(f"job-{n}", n * 0.01, (300, 40, 0.3), (50, 40, 0.0)) for n in range(12)]
    _, both = simulate(
        Workload("all", 0, tuple(plans), None), "fcfs", num_engines=2, router="sticky"
    )
    halves = [Workload("half", 0, tuple(plans[start::2]), None) for start in (0, 1)]
    alone = {}
    for half in halves:
        alone |= durations(simulate(half, "fcfs")[1])
    assert durations(both) == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("policy", ["fcfs", "agentkv"])
def test_turns_of_an_engine_that_fails_are_sent_again(policy: str) -> None:
    """No agent loses a turn, and an engine that failed for good gets none any more."""
    failures = (Failure(1, 2.0),)
    _, run = simulate(BUSY, policy, num_engines=2, router="sticky", failures=failures)
    check_all_done(run)
    assert run.counters["resent_turns"] > 0
    assert sum(run.counters["turns_by_engine"]) == NUM_TURNS + run.counters["resent_turns"]
    _, healthy = simulate(BUSY, policy, num_engines=2, router="sticky")
    assert run.counters["turns_by_engine"][1] < healthy.counters["turns_by_engine"][1] / 2


def test_an_engine_that_recovers_is_empty_and_serves_again() -> None:
    """After its recovery an engine gets turns, which find nothing of before in its cache."""
    first = job("first", 0.0, (320, 5, 3.0), (50, 5, 0.0))
    late = job("late", 2.5, (100, 5, 0.0))
    workload = Workload("two", 0, (first, late), None)
    options = {"num_engines": 2, "router": "sticky"}
    for failures, cached_tokens in (((), 320), ((Failure(0, 1.0, 2.0), Failure(1, 2.9)), 0)):
        simulation, run = simulate(workload, "fcfs", failures=failures, **options)
        by_id = {job.job_id: job for job in run.jobs}
        assert by_id["first"].turns[1].cached_tokens == cached_tokens
        assert {job.status for job in run.jobs} == {"done"}
        assert len(simulation.fleet.replaced) == len(failures) // 2


@pytest.mark.parametrize("text", ["1", "1@", "@5", "a@5", "1@5:", "1@-5", "1@5:5", "1@5:4", "1@5s"])
def test_a_failure_that_cannot_be_read_is_refused(text: str) -> None:
    """A failure is ENGINE@SECONDS[:RECOVERS], and the recovery comes later."""
    with pytest.raises(InputError, match="--fail"):
        parse_failure(text)


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        (["2@5"], "got engine 2, allowed are 0 to 1"),
        (["0@5", "1@6"], "no engine is up"),
        (["0@5:9", "1@6"], "no engine is up"),
        (["0@5", "0@6"], "fails at 6 s while it is down"),
        (["0@5:6", "1@6"], None),
    ],
)
def test_one_engine_is_always_up(failures: list[str], message: str | None) -> None:
    """Failures of engines that do not exist, are down, or are the last one up are refused."""
    parsed = [parse_failure(text) for text in failures]
    if message is None:
        check_failures(parsed, 2)
        return
    with pytest.raises(InputError, match=message):
        check_failures(parsed, 2)
