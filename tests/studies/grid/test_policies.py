"""The policies of a study: names, tiers without loss, clients without tags, parts left out."""

from __future__ import annotations

from statistics import fmean

import pytest

from agentkv.errors import InputError
from agentkv.evals.simulator.plan import RunOptions
from agentkv.evals.simulator.run import SimulatedRun, Simulation
from agentkv.evals.workload.plans import Workload
from studies.grid import ablation
from studies.grid.ablation import ABLATIONS
from studies.grid.policies import parse_grid_policy
from tests.evals.simulator.simulated import machine, random_jobs

PATIENCE = '"patience_s": 1.0'


def path_of(part: str) -> str:
    """The policy without this part, as `--policy` takes it."""
    return f"{ablation.__file__}:{ABLATIONS[part].__name__}"


def play(name: str, workload: Workload, num_blocks: int) -> tuple[Simulation, SimulatedRun]:
    policy = parse_grid_policy(name)
    on, dram_gib = policy.tier(machine(num_blocks), None)
    options = RunOptions(dram_gib=dram_gib, has_tags=policy.has_tags)
    simulation = Simulation(workload, on, policy.choice, options)
    return simulation, simulation.run()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lifo", "allowed are fcfs"),
        ("fcfs+offload@lossless", "@lossless stands alone"),
        ("fcfs@infinite@lossless", "@lossless stands alone"),
        ("studies/grid/ablation.py:WithoutAll", "WithoutAll"),
    ],
)
def test_other_names_are_refused(text: str, message: str) -> None:
    """The error for an invalid policy says what is allowed."""
    with pytest.raises(InputError) as caught:
        parse_grid_policy(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("policy", ["fcfs", "continuum:released", "agentkv"])
def test_without_loss_nothing_is_computed_twice_in_the_same_pool(policy: str) -> None:
    """With @lossless evicted contexts return at once, and the mean job is done sooner."""
    jobs = random_jobs(60, span_s=4.0)
    simulation, run = play(f"{policy}@lossless", jobs, 400)
    _, without = play(policy, jobs, 400)
    assert simulation.machine.num_blocks == 400
    assert run.counters["recomputed_tokens"] == 0
    assert run.counters["reloaded_tokens"] > 0
    mean_s, lossy_s = (fmean(job.duration_s for job in each.jobs) for each in (run, without))
    assert mean_s < lossy_s


@pytest.mark.parametrize("part", sorted(ABLATIONS.keys() - {"switch"}))
def test_a_part_left_out_changes_a_run_under_pressure(part: str) -> None:
    """Each part of the agentkv policy decides something in an overloaded pool."""
    jobs = random_jobs(40, seed=1)
    _, with_all = play(f"agentkv{{{PATIENCE}}}", jobs, 120)
    _, without = play(f"{path_of(part)}{{{PATIENCE}}}", jobs, 120)
    assert {job.status for job in without.jobs} == {"done"}
    assert [job.duration_s for job in without.jobs] != [job.duration_s for job in with_all.jobs]
