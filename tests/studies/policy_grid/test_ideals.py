"""Engines without loss: what no policy can beat, and a yardstick."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, permutations
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.machine import Limits, Machine, alone_s, make_machine
from agentkv.evals.summary import describe_durations, summarize
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from studies.policy_grid.ideals import (
    Ideal,
    closed_ideal,
    ideal_entry,
    least_works_s,
    open_ideal,
)
from studies.policy_grid.policies import ANY_ORDER, IDEALS, IN_ORDER
from tests.evals.simulator.simulated import random_jobs, simulate

POLICIES = ("fcfs", "continuum:released", "agentkv")


def machine(num_blocks: int) -> Machine:
    return make_machine("rtx-5090", "llama-3.1-8b", Limits(num_blocks=num_blocks))


def job(tool_s: float, context_tokens: int = 4000) -> JobPlan:
    turns = (TurnPlan(context_tokens, 50, "ls", tool_s), TurnPlan(100, 50, "", 0.0))
    return JobPlan("a", 0.0, turns)


def ideal(name: str, workload: Workload, on: Machine) -> dict[str, Any]:
    alone = {job.job_id: alone_s(job, on) for job in workload.jobs}
    return ideal_entry(name, workload, on, alone)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_blocks", [180, 400])
@pytest.mark.parametrize("concurrency", [None, 12])
def test_no_policy_is_faster(policy: str, num_blocks: int, concurrency: int | None) -> None:
    """No policy beats the bound on mean, quantiles, maximum or tokens per second."""
    workload = replace(random_jobs(60, seed=num_blocks), concurrency=concurrency)
    _, run = simulate(workload, policy, machine(num_blocks))
    assert {job.status for job in run.jobs} == {"done"}
    least = ideal(ANY_ORDER, workload, machine(num_blocks))
    found = describe_durations([job.duration_s for job in run.jobs])
    assert {name: 0.0 < least[name] < seconds for name, seconds in found.items()} == dict.fromkeys(
        found, True
    )
    tokens_per_s = summarize(RunOutcome(policy, {}, run.jobs))["tokens_per_s"]
    assert 0.2 * least["tokens_per_s"] < tokens_per_s < least["tokens_per_s"]


@pytest.mark.parametrize(
    ("name", "figure", "concurrency"),
    [(IN_ORDER, "mean_s", 60), (ANY_ORDER, "p99_s", None), (ANY_ORDER, "max_s", None)],
)
def test_it_is_not_far_away_where_memory_is_short(
    name: str, figure: str, concurrency: int | None
) -> None:
    """With scarce memory the agentkv policy comes within a factor of 2.5 of the ideal."""
    workload = replace(random_jobs(60, seed=1), concurrency=concurrency)
    _, run = simulate(workload, "agentkv", machine(180))
    found = describe_durations([job.duration_s for job in run.jobs])[figure]
    assert ideal(name, workload, machine(180))[figure] > 0.4 * found


def test_a_smaller_pool_has_more_work() -> None:
    """A job takes more of the engine if fewer contexts share a reading of the weights."""
    small, large = (least_works_s([job(0.1)], machine(size)) for size in (300, 3000))
    assert small[0] > large[0]


def test_holding_counts_until_computing_anew_costs_less() -> None:
    """The work of a job grows with its tools until recomputing its context is cheaper."""
    some, more, long, longer = (
        least_works_s([job(tool_s)], machine(300))[0] for tool_s in (0.5, 0.6, 100.0, 1000.0)
    )
    assert some < more < long == longer


def test_the_shortest_first_has_the_least_mean() -> None:
    """Works of 4, 1 and 2 seconds, the second arriving during the first, match a count by hand."""
    arrivals_s, works_s = [0.0, 1.0, 10.0], [4.0, 1.0, 2.0]
    in_order = open_ideal(IN_ORDER, arrivals_s, works_s)
    assert in_order == (pytest.approx((4 + 4 + 2) / 3), [4.0, 4.0, 2.0], 12.0)
    least = open_ideal(ANY_ORDER, arrivals_s, works_s)
    # Without the first, whose work is the largest, the longest may be 4 seconds shorter.
    assert least == (pytest.approx((5 + 1 + 2) / 3), [4.0, 0.0, 0.0], 12.0)


def test_a_closed_loop_counts_its_last_ends() -> None:
    """In a closed loop of two jobs the durations add up to the last two ends."""
    in_order = closed_ideal(IN_ORDER, [3.0, 1.0, 2.0], 2)
    assert in_order == (pytest.approx((4 + 6) / 3), [3.0, 4.0, 3.0], 6.0)
    least = closed_ideal(ANY_ORDER, [3.0, 1.0, 2.0], 2)
    assert least == (pytest.approx((3 + 6) / 3), [(3 + 6) / 3, 3 / 2, 0.0], 6.0)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(1, 6),
)
def test_no_order_is_better_by_any_figure(
    gaps_and_works: list[tuple[int, int]], concurrency: int
) -> None:
    """The bound holds against every order of priority of a few jobs, open and closed."""
    gaps, works = zip(*gaps_and_works, strict=True)
    arrivals = list(accumulate(gaps))
    least_open = open_ideal(ANY_ORDER, arrivals, works)
    least_closed = closed_ideal(ANY_ORDER, works, concurrency)
    for order in permutations(range(len(works))):
        opened = served(arrivals, works, order)
        assert_not_better(opened, least_open)
        ends = list(accumulate(works[index] for index in order))
        starts = ([0] * concurrency + ends)[: len(ends)]
        closed = [end - start for start, end in zip(starts, ends, strict=True)]
        assert_not_better(closed, least_closed)


def served(arrivals: list[int], works: tuple[int, ...], order: tuple[int, ...]) -> list[int]:
    """Durations if each second goes to the first job in `order` that has arrived."""
    left, durations, second = dict(enumerate(works)), [], 0
    while left:
        there = [index for index in order if index in left and arrivals[index] <= second]
        second += 1
        if there:
            left[there[0]] -= 1
            if not left[there[0]]:
                del left[there[0]]
                durations.append(second - arrivals[there[0]])
    return durations


def assert_not_better(durations: list[int], least: Ideal) -> None:
    assert fmean(durations) >= least.mean_s - 1e-9
    longest = zip(sorted(durations, reverse=True), least.durations_s, strict=True)
    assert all(seconds >= bound - 1e-9 for seconds, bound in longest)


def test_no_job_is_faster_than_alone() -> None:
    """The ideal of a single job is its duration on an empty server."""
    workload = Workload("one", 0, (job(30.0),), None)
    for name in IDEALS:
        found = ideal(name, workload, machine(300))
        assert found["mean_s"] == found["p50_s"] == found["max_s"]
        assert found["max_s"] == alone_s(job(30.0), machine(300)) > 30.0
