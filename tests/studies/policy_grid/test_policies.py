"""The policies of a study: names, ideals, tiers without loss, and rules left out."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.event_log.jobs import jobs_of
from agentkv.evals.event_log.reading import read_record
from agentkv.evals.event_log.totals import passed_over
from agentkv.evals.simulator.run import RunOptions, SimulatedRun, Simulation
from agentkv.evals.workload.plans import Workload
from studies.policy_grid.ablation import ABLATIONS
from studies.policy_grid.policies import IN_ORDER, parse_grid_policy
from tests.evals.simulator.simulated import machine, random_jobs

PATIENCE_S = 1.0


def play(
    name: str, workload: Workload, num_blocks: int, **options: Any
) -> tuple[Simulation, SimulatedRun]:
    policy = parse_grid_policy(name)
    assert policy.choice is not None
    on, dram_gib = policy.tier(machine(num_blocks), 64.0)
    run_options = RunOptions(dram_gib=dram_gib, policy_class=policy.policy_class(), **options)
    simulation = Simulation(workload, on, policy.choice, run_options)
    return simulation, simulation.run()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (IN_ORDER, IN_ORDER),
        ("fcfs@infinite", "fcfs@infinite"),
        ('agentkv{ "patience_s": 5}@lossless', 'agentkv{"patience_s":5}@lossless'),
        ('agentkv{"without": ["order"]}', 'agentkv{"without":["order"]}'),
        (
            'agentkv{"without": ["order"], "patience_s": 5}',
            'agentkv{"patience_s":5,"without":["order"]}',
        ),
    ],
)
def test_names_have_one_spelling(text: str, name: str) -> None:
    """The name of a policy does not depend on spaces or order in its settings."""
    assert parse_grid_policy(text).name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ideal:none", "ideals are ideal:in-order and"),
        ("lifo", "allowed are fcfs"),
        ("fcfs+offload@lossless", "@lossless stands alone"),
        ("fcfs@infinite@lossless", "@lossless stands alone"),
        ('agentkv{"without": ["gate"]}', "rules to leave out are switch"),
        ('continuum{"without": ["order"]}', "unknown key 'without'"),
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


@pytest.mark.parametrize("rule", sorted(ABLATIONS.keys() - {"switch"}))
def test_a_rule_left_out_changes_a_run_under_pressure(rule: str) -> None:
    """Each rule of the agentkv policy decides something in an overloaded pool."""
    jobs = random_jobs(40, seed=1)
    settings = f'{{"patience_s": {PATIENCE_S}, "without": ["{rule}"]}}'
    _, with_all = play(f'agentkv{{"patience_s": {PATIENCE_S}}}', jobs, 120)
    _, without = play(f"agentkv{settings}", jobs, 120)
    assert {job.status for job in without.jobs} == {"done"}
    assert [job.duration_s for job in without.jobs] != [job.duration_s for job in with_all.jobs]


def test_without_the_switch_pressure_never_ends() -> None:
    """Without the rule of the switch the others hold on an idle server, too."""
    for name, is_on in (("agentkv", False), ('agentkv{"without": ["switch"]}', True)):
        simulation, _ = play(name, random_jobs(1), 400)
        assert simulation.engine.scheduler.retention.policy.pressure.is_on is is_on


def test_without_the_order_of_jobs_later_ones_pass_over(tmp_path: Path) -> None:
    """Without the rule of order, jobs are passed over by later ones after the patience."""
    settings = {"patience_s": PATIENCE_S, "without": ["order"]}
    _, run = play(
        f"agentkv{json.dumps(settings)}", random_jobs(60, seed=1), 120, record_events=10**5
    )
    path = tmp_path / "timestamps.json"
    path.write_text(json.dumps(run.record))
    found = passed_over(jobs_of(read_record(str(path))), PATIENCE_S)
    assert found["continuing"]["passed_over"] > 0
