"""Engines without loss: what no policy can beat, and a yardstick."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from agentkv.evals.load.plans import JobPlan, TurnPlan, Workload
from agentkv.evals.simulation.alone import alone_s
from agentkv.evals.simulation.errors import SimulationError
from agentkv.evals.simulation.machine import Limits, Machine, make_machine
from agentkv.evals.simulation.simulate import main as simulate_command
from agentkv.evals.study.ideals import (
    ANY_ORDER,
    IDEALS,
    IN_ORDER,
    closed_mean_s,
    ideal_entry,
    least_works_s,
    open_mean_s,
    policy_name,
)
from tests.evals.simulation.simulated import random_jobs, simulate
from tests.evals.simulation.test_machine import PROFILE

POLICIES = ("fcfs", "continuum:released", "agentkv", 'agentkv{"without":["order"]}')


def machine(num_blocks: int) -> Machine:
    return make_machine("rtx-5090", "llama-3.1-8b", Limits(num_blocks=num_blocks))


def job(tool_s: float, context_tokens: int = 4000) -> JobPlan:
    turns = (TurnPlan(context_tokens, 50, "ls", tool_s), TurnPlan(100, 50, "", 0.0))
    return JobPlan("a", 0.0, turns)


def ideal_s(name: str, workload: Workload, on: Machine) -> float:
    alone = {job.job_id: alone_s(job, on) for job in workload.jobs}
    return float(ideal_entry(name, workload, on, alone)["mean_s"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_blocks", [180, 400])
@pytest.mark.parametrize("concurrency", [None, 12])
def test_no_policy_is_faster(policy: str, num_blocks: int, concurrency: int | None) -> None:
    """Whatever the pool and however jobs come."""
    workload = replace(random_jobs(60, seed=num_blocks), concurrency=concurrency)
    _, run = simulate(workload, policy, machine(num_blocks))
    assert {job.status for job in run.jobs} == {"done"}
    mean_s = fmean(job.duration_s for job in run.jobs)
    assert 0.0 < ideal_s(ANY_ORDER, workload, machine(num_blocks)) < mean_s


def test_it_is_not_far_away_where_memory_is_short() -> None:
    """A yardstick that nothing comes near would say little."""
    workload = replace(random_jobs(60, seed=1), concurrency=60)
    _, run = simulate(workload, "agentkv", machine(180))
    mean_s = fmean(job.duration_s for job in run.jobs)
    assert ideal_s(IN_ORDER, workload, machine(180)) > 0.4 * mean_s


def test_a_smaller_pool_has_more_work() -> None:
    """Fewer contexts share a reading of the weights."""
    small, large = (least_works_s([job(0.1)], machine(size)) for size in (300, 3000))
    assert small[0] > large[0]


def test_holding_counts_until_computing_anew_costs_less() -> None:
    """With longer tools the work grows, but not forever."""
    some, more, long, longer = (
        least_works_s([job(tool_s)], machine(300))[0] for tool_s in (0.5, 0.6, 100.0, 1000.0)
    )
    assert some < more < long == longer


def test_the_shortest_first_has_the_least_mean() -> None:
    """By hand: works of 4, 1 and 2 seconds; the second comes during the first."""
    arrivals_s, works_s = [0.0, 1.0, 10.0], [4.0, 1.0, 2.0]
    assert open_mean_s(IN_ORDER, arrivals_s, works_s) == pytest.approx((4 + 4 + 2) / 3)
    assert open_mean_s(ANY_ORDER, arrivals_s, works_s) == pytest.approx((5 + 1 + 2) / 3)


def test_a_closed_loop_counts_its_last_ends() -> None:
    """Two at once of 3, 1 and 2 seconds: the durations add up to the last two ends."""
    assert closed_mean_s(IN_ORDER, [3.0, 1.0, 2.0], 2) == pytest.approx((4 + 6) / 3)
    assert closed_mean_s(ANY_ORDER, [3.0, 1.0, 2.0], 2) == pytest.approx((3 + 6) / 3)


def test_no_job_is_faster_than_alone() -> None:
    """One job on an empty server waits for nobody, and for its tools."""
    workload = Workload("one", 0, (job(30.0),), None)
    for name in IDEALS:
        assert ideal_s(name, workload, machine(300)) == alone_s(job(30.0), machine(300)) > 30.0


def test_names_are_those_of_ideals_and_policies() -> None:
    """Anything else is refused."""
    assert policy_name(IN_ORDER) == IN_ORDER
    assert policy_name('agentkv{ "patience_s": 5}') == 'agentkv{"patience_s":5}'
    with pytest.raises(SimulationError, match="got 'ideal:none', ideals are ideal:in-order and"):
        policy_name("ideal:none")


def test_a_profile_of_a_server_has_no_ideal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its step is a fitted line, of which the weights are no part."""
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    flags = ["study", "--gpu", str(profile), "--policy", IN_ORDER, "--out", str(tmp_path / "s")]
    assert simulate_command(flags) == 2
    assert "need a GPU of the catalog, got a profile" in capsys.readouterr().err
