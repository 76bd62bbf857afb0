"""What the studies on a real CPU server make of its times and outputs."""

from __future__ import annotations

import json
import shlex

import pytest

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.machine import ServerProfile
from studies.cpu_server.rivals import agentinfer_flags, prefill_model, router_command
from studies.cpu_server.tier import differing, table_rows
from studies.rivals import read_rivals
from tests.evals.made_runs import job, run, turn

MACHINE = ServerProfile(
    name="made",
    model="m",
    step=FittedLine(0.05, 0.002, 4e-6, 0.003, 3e-5),
    request_s=0.01,
    num_blocks=144,
    block_tokens=32,
    kv_token_bytes=0,
    max_num_seqs=8,
    max_num_batched_tokens=2048,
    max_model_tokens=2048,
    measured={},
)


def test_a_cold_prefill_costs_what_the_profile_says() -> None:
    """A thousand tokens: request and step, their own times, and half of all pairs of them."""
    assert sum(prefill_model(MACHINE)) == pytest.approx(0.01 + 0.05 + 2.0 + 4e-6 * 1e6 / 2)


def test_both_rivals_are_read_as_compare_reads_them() -> None:
    """The JSON survives the quoting; untuned, the router gets only the pool's size."""
    command = shlex.join(["sh", *router_command(MACHINE)[1:]])
    [router] = read_rivals([], [f"router={command}"])
    config = json.loads(router.proxy[-1])
    assert config["token_capacity_per_target"] == 143 * 32
    assert config["prefill_cost_model"]["intercept_seconds"] == pytest.approx(0.06)
    assert config["force_resume_timeout_seconds"] <= config["queue_timeout_seconds"]
    assert list(json.loads(router_command(None)[-1])) == ["token_capacity_per_target"]
    settings = json.loads(agentinfer_flags(MACHINE)[-1])["agentcache"]["progress_ttl"]
    assert settings["decode_step_seconds_per_request"] == 0.003
    assert agentinfer_flags(None)[-2] == "--scheduler-cls"


SIMULATED = {"fcfs+offload": {"mean_s": 10.0}, "agentkv+offload": {"mean_s": 5.0}}


def run_of(policy: str, repeat: int, took_s: float, digest: str = "same") -> RunOutcome:
    """A job of one turn that takes `took_s`."""
    only = job(num_turns=1, ended_s=took_s, turns=(turn(ended_s=took_s, output_digest=digest),))
    return run(only, policy=policy, metadata={"repeat": repeat})


FOUND = {
    "none": [run_of("fcfs", 1, 10.0), run_of("fcfs", 2, 20.0)],
    "fast": [run_of("fcfs", 1, 8.0), run_of("agentkv", 1, 4.0), run_of("agentkv", 2, 5.0, "other")],
}


def test_a_ratio_compares_runs_of_the_same_repeat() -> None:
    """`agentkv` is compared with stock without a tier, and with stock and the same tier as far as
    that has run; the simulator's time is set next to each repeat's, its ratio has the tier, too."""
    _, ours = table_rows("fast", FOUND, SIMULATED)
    assert ours[:3] == ["fast", "agentkv", "2"]
    assert ours[3:6] == ["4.5 (4.0-5.0)", "0.33 (0.25-0.40)", "0.50 (0.50-0.50)"]
    assert ours[-3:] == ["5.0", "1.12 (1.00-1.25)", "0.50"]


def test_a_table_without_stock_has_no_ratios() -> None:
    """A study of one tier and one policy is possible."""
    [ours] = table_rows("fast", {"fast": FOUND["fast"][1:]}, SIMULATED)
    assert ours[4:6] == ["-", "-"]


def test_turns_with_another_output_than_the_first_run_are_counted() -> None:
    """Greedy output is compared over tiers, policies and repeats."""
    assert differing(FOUND) == {"none": 0, "fast": 1, "compared": 5}
