"""What the studies on a real CPU server make of its times and outputs."""

from __future__ import annotations

import json
import shlex

import pytest

from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.machine import ServerProfile
from studies.cpu_server.rivals import agentinfer_flags, prefill_model, router_command
from studies.rivals import read_rivals

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
    """The JSON survives the quoting."""
    command = shlex.join(["sh", *router_command(MACHINE)[1:]])
    [router] = read_rivals([], [f"router={command}"])
    config = json.loads(router.proxy[-1])
    assert config["token_capacity_per_target"] == 143 * 32
    assert config["prefill_cost_model"]["intercept_seconds"] == pytest.approx(0.06)
    assert config["force_resume_timeout_seconds"] <= config["queue_timeout_seconds"]
    settings = json.loads(agentinfer_flags(MACHINE)[-1])["agentcache"]["progress_ttl"]
    assert settings["decode_step_seconds_per_request"] == 0.003
