"""Whole runs on vLLM's real scheduler: accounting, conservation, jumps, agreement with theory."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkv.errors import InputError
from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import alone_s
from agentkv.evals.simulator.policies import parse_policy
from agentkv.evals.simulator.run import Simulation
from agentkv.evals.workload.plans import Workload

from .simulated import durations, job, machine, random_jobs, simulate

POLICIES = (
    "fcfs",
    "continuum",
    "continuum:released",
    "context_serve",
    "fcfs@infinite",
    "fcfs+offload",
    "continuum+offload",
)
BUSY = random_jobs(30)
"""More than the pool of `machine()` holds at once: turns wait, are evicted and preempted."""


@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_is_accounted_for(policy: str) -> None:
    """Arrived = done + failed + cut, each once, with all its turns."""
    _, run = simulate(BUSY, policy)
    assert sorted(job.job_id for job in run.jobs) == sorted(plan.job_id for plan in BUSY.jobs)
    assert {job.status for job in run.jobs} == {"done"}
    plans = {plan.job_id: plan for plan in BUSY.jobs}
    for outcome in run.jobs:
        plan = plans[outcome.job_id]
        assert [turn.output_tokens for turn in outcome.turns] == [
            turn.output_tokens for turn in plan.turns
        ]
        assert [turn.prompt_tokens for turn in outcome.turns] == [
            plan.prompt_tokens(number) for number in range(len(plan.turns))
        ]


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_are_conserved(policy: str) -> None:
    """At the end every block but the null block is free, and nothing is pinned."""
    simulation, _ = simulate(BUSY, policy)
    engine = simulation.engine
    assert engine.num_free_blocks == simulation.machine.num_blocks - 1
    assert not engine.is_busy
    retention = getattr(engine.scheduler, "retention", None)
    assert retention is None or len(retention.pins) == len(retention.jobs) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_parts_add_up_to_the_duration(policy: str) -> None:
    """Queueing and prefill, decode and tools; within a millisecond of virtual time."""
    _, run = simulate(BUSY, policy)
    assert all(abs(job.parts.other_s) < 0.001 for job in run.jobs)
    plans = {plan.job_id: plan for plan in BUSY.jobs}
    for outcome in run.jobs:
        assert outcome.parts.tools_s == pytest.approx(plans[outcome.job_id].tool_s)


@pytest.mark.parametrize("policy", ["fcfs", "continuum", "fcfs+offload"])
def test_every_token_is_computed_once_or_counted(policy: str) -> None:
    """Computed tokens are those not cached, and those of preempted turns anew."""
    _, run = simulate(BUSY, policy)
    needed = sum(
        turn.prompt_tokens - turn.cached_tokens + turn.output_tokens - 1
        for job in run.jobs
        for turn in job.turns
    )
    computed = run.counters["computed_tokens"]
    assert computed >= needed
    if not run.counters["preemptions"]:
        assert computed == needed


@pytest.mark.parametrize("policy", POLICIES)
def test_jumps_change_nothing(policy: str) -> None:
    """Job by job the same as single steps, to the rounding of sums, and in fewer steps."""
    _, jumping = simulate(BUSY, policy)
    _, stepping = simulate(BUSY, policy, has_jumps=False)
    assert durations(jumping) == pytest.approx(durations(stepping), rel=0, abs=1e-9)
    for name in ("computed_tokens", "recomputed_tokens", "preemptions", "reloaded_tokens"):
        assert jumping.counters[name] == stepping.counters[name]
    assert jumping.counters["steps"] < stepping.counters["steps"]
    assert stepping.counters["jumps"] == 0


@pytest.mark.parametrize("has_jumps", [True, False])
def test_our_policy_learns_the_price_of_the_machine(has_jumps: bool) -> None:
    """What a context adds to the steps, by the roofline's own figures; jumps are no long steps."""
    chance = random.Random(1)
    jobs = [
        job(f"job-{number}", number * 0.2, (chance.randint(500, 3000), 60, 0.4), (500, 60, 0.0))
        for number in range(60)
    ]
    workload = Workload("prompts", 0, tuple(jobs), None)
    simulation, _ = simulate(workload, "agentkv", machine(1000), has_jumps=has_jumps)
    learned = simulation.engine.scheduler.retention.costs.step_time
    cost = simulation.machine.cost
    assert isinstance(cost, Roofline)
    num_flop = 2000 * cost.token_flop + 2000**2 / 2 * cost.pair_flop
    assert learned.reload.seconds(2000) == pytest.approx(num_flop / cost.flop_per_s, rel=0.15)
    assert 1.0 < learned.worth < 5.0


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    num_blocks=st.integers(170, 400),
    policy=st.sampled_from(POLICIES),
    max_num_seqs=st.sampled_from((2, 8, 64)),
)
def test_any_load_ends_with_everything_free(
    seed: int, num_blocks: int, policy: str, max_num_seqs: int
) -> None:
    """Whatever the jobs, the pool and the policy: all jobs done, all blocks free, time adds up."""
    workload = random_jobs(12, seed=seed, span_s=1.0)
    simulation, run = simulate(workload, policy, machine(num_blocks, max_num_seqs=max_num_seqs))
    assert {job.status for job in run.jobs} == {"done"}
    assert simulation.engine.num_free_blocks == simulation.machine.num_blocks - 1
    assert all(abs(job.parts.other_s) < 0.001 for job in run.jobs)


@pytest.mark.parametrize("policy", ["fcfs", "continuum", "context_serve"])
def test_a_job_alone_takes_what_the_cost_model_says(policy: str) -> None:
    """The closed form that slowdowns are against, chunked prefill included."""
    plan = job("alone", 1.0, (5000, 30, 0.7), (17, 1, 3.0), (300, 50, 0.0))
    on = machine(1000)
    _, run = simulate(Workload("one", 0, (plan,), None), policy, on)
    assert run.jobs[0].duration_s == pytest.approx(alone_s(plan, on), abs=1e-9)


def test_an_unlimited_pool_computes_nothing_twice() -> None:
    """@infinite holds every context of the run."""
    _, run = simulate(BUSY, "fcfs@infinite")
    assert run.counters["recomputed_tokens"] == run.counters["preemptions"] == 0


def test_an_unlimited_pool_has_its_limit() -> None:
    """Blocks are objects: a run that needs too many is refused."""
    jobs = tuple(job(f"job-{number}", 0.0, (100_000_000, 1, 0.0)) for number in range(2))
    with pytest.raises(InputError, match=r"@infinite: .* blocks for all contexts"):
        simulate(Workload("huge", 0, jobs, None), "fcfs@infinite")


def test_scarce_memory_costs_fcfs_what_pins_save() -> None:
    """The more of a context survives the tool, the less is computed again."""
    recomputed = {}
    for policy in ("fcfs", "continuum:released", "fcfs+offload", "fcfs@infinite"):
        _, run = simulate(random_jobs(60, span_s=4.0), policy, machine(400))
        recomputed[policy] = run.counters["recomputed_tokens"]
    assert recomputed["fcfs"] > recomputed["continuum:released"] > recomputed["fcfs@infinite"] == 0
    assert recomputed["fcfs"] > recomputed["fcfs+offload"]


def test_a_context_the_server_does_not_take_fails_its_job() -> None:
    """As with a real server's HTTP 400; the others go on, and nothing is left behind."""
    long, short = job("long", 0.0, (100, 5, 0.1), (9000, 5, 0.0)), job("short", 0.0, (10, 5, 0.0))
    simulation, run = simulate(Workload("two", 0, (long, short), None), "continuum", machine(50))
    by_id = {job.job_id: job for job in run.jobs}
    assert (by_id["long"].status, by_id["short"].status) == ("failed", "done")
    error = by_id["long"].turns[-1].error
    assert error is not None
    assert "the server takes 784" in error
    assert simulation.engine.num_free_blocks == 49


def test_a_closed_loop_keeps_so_many_jobs_running() -> None:
    """The next job arrives when one ends."""
    jobs = tuple(job(f"job-{number}", 0.0, (50, 5, 0.2), (50, 5, 0.0)) for number in range(6))
    _, run = simulate(Workload("loop", 0, jobs, 2), "fcfs")
    arrivals = sorted(job.arrived_s for job in run.jobs)
    ends = sorted(job.ended_s for job in run.jobs)
    assert arrivals == [0.0, 0.0, *ends[:4]]


def test_what_is_interrupted_is_cut() -> None:
    """Jobs under way count as cut, jobs yet to come as not arrived."""
    simulation = Simulation(BUSY, machine(), parse_policy("fcfs"))

    def stop(job: object, num_ended: int) -> None:
        if num_ended == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulation.run(on_job_end=stop)
    statuses = [job.status for job in simulation.result().jobs]
    assert statuses.count("done") == 5
    assert len(statuses) == simulation.num_arrived
