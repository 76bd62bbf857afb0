"""What 1x is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentkv.evals.simulator.machine import Limits, Machine, alone_s, make_machine
from agentkv.evals.workload.plans import JobPlan, TurnPlan
from studies.policy_grid.grid import Footprint, capacity, mean_footprint


def machine(num_blocks: int = 1001) -> Machine:
    return make_machine("h100", "llama-3.1-8b", Limits(num_blocks=num_blocks))


def job(tool_s: float = 2.0) -> JobPlan:
    return JobPlan("a", 0.0, (TurnPlan(1000, 100, "ls", tool_s), TurnPlan(500, 50, "", 0.0)))


def test_the_pool_is_full_at_the_rate_of_memory() -> None:
    """Little's law: 16,000 tokens, 8,000 token-seconds a job: 2 jobs per second."""
    found = capacity(Footprint(8000.0, 4.0, 1000.0, 10.0), machine(1001))
    assert found.memory_jps == pytest.approx(2.0)
    assert found.num_resident == pytest.approx(8.0)


def test_one_x_is_the_lower_rate() -> None:
    """Of memory with long tools, of compute with a large pool."""
    footprint = mean_footprint([job()], machine())
    small, large = capacity(footprint, machine(300)), capacity(footprint, machine(60_000))
    assert small.one_x_jps == small.memory_jps < small.compute_jps
    assert large.one_x_jps == large.compute_jps < large.memory_jps


def test_a_tool_holds_the_context_for_its_time() -> None:
    """A second more in the tool: 1,100 token-seconds more, and a second."""
    short, long = (mean_footprint([job(tool_s)], machine()) for tool_s in (2.0, 3.0))
    assert long.token_s - short.token_s == pytest.approx(1100.0)
    assert long.duration_s - short.duration_s == pytest.approx(1.0)


def test_a_job_takes_as_long_as_alone() -> None:
    """By the simulator's own account of it."""
    found = mean_footprint([job()], machine())
    assert found.duration_s == pytest.approx(alone_s(job(), machine()))


def test_the_pool_does_not_change_a_footprint() -> None:
    """So that it is computed once for all pools."""
    assert mean_footprint([job()], machine(300)) == mean_footprint([job()], machine(60_000))


def test_larger_batches_compute_more() -> None:
    """A pool that holds more contexts shares the reading of the weights among more."""
    footprint = mean_footprint([job()], machine())
    rates = [capacity(footprint, machine(blocks)).compute_jps for blocks in (200, 1000, 5000)]
    assert rates == sorted(rates)
    few = replace(machine(5000), max_num_seqs=1)
    assert capacity(footprint, few).compute_jps < rates[-1]
