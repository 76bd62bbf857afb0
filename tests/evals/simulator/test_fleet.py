"""Several engines on one virtual time: each router's rule, exact times, and failures."""

from __future__ import annotations

from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.simulator.fleet import (
    ROUTERS,
    Failure,
    FleetPlan,
    LeastLoaded,
    PrefixAware,
    RoundRobin,
    Sticky,
    Upstream,
    parse_failure,
)
from agentkv.evals.simulator.plugin import StickySpill
from agentkv.evals.simulator.run import SimulatedRun
from agentkv.evals.simulator.turns import ContextHashes, LiveTurn
from agentkv.evals.workload.plans import Prefix, Workload
from agentkv.integrations.vllm.watch.load_reports import EngineReport

from .simulated import durations, job, random_jobs, simulate

BUSY = random_jobs(40)
"""More than one pool of `machine()` holds at once."""
NUM_TURNS = sum(len(plan.turns) for plan in BUSY.jobs)


def upstreams(*num_in_flight: int) -> list[Upstream]:
    return [
        Upstream(rank, 1000, {str(number): turn(None) for number in range(count)})
        for rank, count in enumerate(num_in_flight)
    ]


def turn(job_key: str | None, num_tokens: int = 100, context: str = "", **more: Any) -> LiveTurn:
    hashes = ContextHashes(0, 16)
    fields = {"job_key": job_key, "context": context or job_key or "", **more}
    return LiveTurn("turn", num_tokens, 1, 0, hashes, 0, **fields)


def test_round_robin_skips_an_engine_that_is_down() -> None:
    """Requests and signals go round the engines that are up."""
    router, up = RoundRobin(), upstreams(0, 9, 0)
    assert [router.choose(turn("a"), up, 0.0) for _ in range(4)] == [0, 1, 2, 0]
    assert router.choose_for_signal("a", up) == 1
    assert [router.choose(turn("a"), [up[0], up[2]], 0.0) for _ in range(3)] == [2, 0, 2]


def test_least_loaded_takes_equals_in_turn() -> None:
    """The fewest requests under way decide, and equal engines take turns."""
    router = LeastLoaded()
    assert [router.choose(turn("a"), upstreams(1, 0, 0), 0.0) for _ in range(3)] == [1, 2, 1]


@pytest.mark.parametrize("make", [Sticky, StickySpill])
def test_a_job_stays_and_moves_when_its_engine_is_down(make: type[RoundRobin]) -> None:
    """Turns and signals of a job stay together, after a failure too; other requests go by load."""
    router, up = make(), upstreams(5, 0, 5)
    assert router.choose(turn("a"), up, 0.0) == 1
    up = upstreams(0, 5, 3)
    assert router.choose(turn("a"), up, 1.0) == router.choose_for_signal("a", up) == 1
    assert router.choose(turn("a"), [up[0], up[2]], 2.0) == 0
    assert router.choose(turn("a"), upstreams(9, 0, 0), 3.0) == 0
    assert [router.choose(turn(None), upstreams(*n), 3.0) for n in ((1, 0), (0, 1))] == [1, 0]


def test_sticky_spill_moves_a_job_if_that_is_faster() -> None:
    """A turn leaves a queue for the least loaded engine when a prefill there is faster."""
    router, up = StickySpill(), upstreams(0, 1)
    assert router.choose(turn("a"), up, 0.0) == 0
    up = upstreams(5, 1)
    up[0].num_waiting = 3
    for wait_s, rank in ((0.15, 0), (0.25, 1)):
        for view, wait in zip(up, (wait_s, 0.0), strict=True):
            view.report = EngineReport(wait, (0.0, 0.001, 0.0), 1.0)  # 1 ms a token
        assert router.choose(turn("a"), up, 1.0) == rank
    assert router.choose(turn("a"), upstreams(0, 9), 2.0) == 1


def test_sticky_spill_starts_a_sub_agent_with_its_parent() -> None:
    """A sub-agent starts on its parent's engine if nobody waits there."""
    router, up = StickySpill(), upstreams(0, 1)
    assert router.choose(turn("parent"), up, 0.0) == 0
    up = upstreams(5, 0)
    assert router.choose(turn("child", parent_key="parent"), up, 0.0) == 0
    up[0].num_waiting = 1
    assert router.choose(turn("other", parent_key="parent"), up, 0.0) == 1


def test_prefix_aware_follows_the_prompt_until_load_differs_too_much() -> None:
    """Half of the prompt decides, unless one engine has 33 requests more than another."""
    router = PrefixAware()
    sent = ((100, (0, 1), 0), (150, (5, 1), 0), (400, (5, 1), 1), (410, (0, 33), 0))
    for num_tokens, in_flight, rank in sent:
        assert router.choose(turn(None, num_tokens, "chat"), upstreams(*in_flight), 0.0) == rank


def test_prefix_aware_knows_shared_prefixes_and_forgets_the_oldest() -> None:
    """A new job follows its shared prefix; contexts beyond the pool's size are forgotten."""
    router, prefixes = PrefixAware(), (Prefix("system", 90),)
    first = turn(None, 100, "a", prefixes=prefixes)
    assert router.choose(first, upstreams(0, 1), 0.0) == 0
    assert router.choose(turn(None, 100, "b", prefixes=prefixes), upstreams(1, 0), 0.0) == 0
    assert router.choose(turn(None, 100, "c"), upstreams(1, 0), 0.0) == 1
    assert router.choose(turn(None, 990, "big"), upstreams(0, 1), 0.0) == 0
    assert router.choose(first, upstreams(1, 0), 0.0) == 1


def check_all_done(run: SimulatedRun) -> None:
    num_turns = {plan.job_id: len(plan.turns) for plan in BUSY.jobs}
    assert {job.job_id: len(job.turns) for job in run.jobs} == num_turns
    assert {job.status for job in run.jobs} == {"done"}
    assert max(abs(job.parts["other_s"]) for job in run.jobs) < 0.001


@pytest.mark.parametrize("router", ROUTERS)
def test_every_turn_is_played_once(router: str) -> None:
    """Behind each router all jobs end with all turns, and a sticky one moves none."""
    simulation, run = simulate(BUSY, "fcfs", fleet=FleetPlan(3, router))
    check_all_done(run)
    assert sum(run.counters["turns_by_engine"]) == NUM_TURNS
    assert min(run.counters["turns_by_engine"]) > NUM_TURNS / 6
    if router == "sticky":
        assert run.counters["moved_turns"] == 0
    if router in ("round-robin", "least-loaded"):
        assert run.counters["moved_turns"] > NUM_TURNS / 4
    assert simulation.fleet is not None
    assert [engine.num_free_blocks for engine in simulation.fleet.engines] == [199, 199, 199]


@pytest.mark.parametrize("policy", ["fcfs", "continuum:released"])
def test_jumps_change_nothing_with_several_engines(policy: str) -> None:
    """Jumps that an arrival ends give every job the duration of single steps, to rounding."""
    fleet = FleetPlan(3, "least-loaded")
    _, jumping = simulate(BUSY, policy, fleet=fleet)
    _, stepping = simulate(BUSY, policy, fleet=fleet, has_jumps=False)
    assert durations(jumping) == pytest.approx(durations(stepping), rel=0, abs=1e-9)
    assert jumping.counters["turns_by_engine"] == stepping.counters["turns_by_engine"]
    assert jumping.counters["steps"] < stepping.counters["steps"] / 2


def test_two_engines_are_two_machines() -> None:
    """Jobs that alternate between two engines take as long as half of them on one alone."""
    plans = [job(f"job-{n}", n * 0.01, (300, 40, 0.3), (50, 40, 0.0)) for n in range(12)]
    workload = Workload("all", 0, tuple(plans), None)
    _, both = simulate(workload, "fcfs", fleet=FleetPlan(2, "sticky"))
    alone: dict[str, float] = {}
    for start in (0, 1):
        half = Workload("half", 0, tuple(plans[start::2]), None)
        alone |= durations(simulate(half, "fcfs")[1])
    assert durations(both) == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("policy", ["fcfs", "agentkv"])
def test_turns_of_an_engine_that_fails_are_sent_again(policy: str) -> None:
    """No agent loses a turn, and an engine that failed for good gets none any more."""
    _, run = simulate(BUSY, policy, fleet=FleetPlan(2, "sticky", (Failure(1, 2.0),)))
    check_all_done(run)
    assert run.counters["resent_turns"] > 0
    assert sum(run.counters["turns_by_engine"]) == NUM_TURNS + run.counters["resent_turns"]
    _, healthy = simulate(BUSY, policy, fleet=FleetPlan(2, "sticky"))
    assert run.counters["turns_by_engine"][1] < healthy.counters["turns_by_engine"][1] / 2


def test_an_engine_that_recovers_is_empty_and_serves_again() -> None:
    """After its recovery an engine gets turns, which find nothing of before in its cache."""
    first = job("first", 0.0, (320, 5, 3.0), (50, 5, 0.0))
    late = job("late", 2.5, (100, 5, 0.0))
    workload = Workload("two", 0, (first, late), None)
    failing = (Failure(0, 1.0, 2.0), Failure(1, 2.9))
    for failures, cached_tokens in (((), 320), (failing, 0)):
        _, run = simulate(workload, "fcfs", fleet=FleetPlan(2, "sticky", failures))
        by_id = {job.job_id: job for job in run.jobs}
        assert by_id["first"].turns[1].cached_tokens == cached_tokens
        assert {job.status for job in run.jobs} == {"done"}


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
    ],
)
def test_one_engine_is_always_up(failures: list[str], message: str) -> None:
    """Failures of engines that do not exist, are down, or are the last one up are refused."""
    with pytest.raises(InputError, match=message):
        FleetPlan(2, "sticky", tuple(parse_failure(text) for text in failures))
    FleetPlan(2, "sticky", (parse_failure("0@5:6"), parse_failure("1@6")))
