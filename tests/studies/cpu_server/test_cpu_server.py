"""What the studies on a real CPU server make of its times and outputs."""

from __future__ import annotations

import json
import shlex

import pytest

from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from agentkv.evals.player.job import Windows
from agentkv.evals.rivals import read_rivals
from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.machine import ServerProfile
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.evals.workload.sample_text import sample_text
from studies.cpu_server.rivals import agentinfer_flags, prefill_model, router_command
from studies.cpu_server.tier import differing, table_rows
from studies.cpu_server.untagged import SHELL, QwenCode, found_share, without_tags
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


JOB = JobPlan("a", 0.0, (TurnPlan(20, 5, "ls -la", 1.5), TurnPlan(30, 5, "", 0.0)))


def event(**delta: object) -> dict[str, object]:
    return {"choices": [{"delta": delta}]}


def test_the_replay_appends_to_its_history_and_names_nothing() -> None:
    """The second request repeats the first one's messages, then the call and its output."""
    agent = QwenCode(JOB, "m", Windows(sample_text(), 0))
    first = agent.request(0)
    assert set(first) == {"model", "messages", "tools", "max_tokens", "extra_body"}
    assert set(first["extra_body"]) == {"structured_outputs"}
    agent.read(event(tool_calls=[{"id": "call_1", "function": {"name": SHELL, "arguments": ""}}]))
    agent.read(event(tool_calls=[{"function": {"arguments": json.dumps({"command": "ls -la"})}}]))
    assert agent.end_turn(0) == "ls -la"
    second = agent.request(1)
    *history, said, result = second["messages"]
    assert history == first["messages"]
    assert said["content"] is None
    assert said["tool_calls"][0]["function"]["name"] == SHELL
    assert (result["role"], result["tool_call_id"]) == ("tool", "call_1")
    assert second["tools"] == first["tools"]


def test_nobody_reports_the_tools_of_a_job_without_tags() -> None:
    """The tool's time passes all the same, as a pause before the next turn."""
    [job] = without_tags(Workload("w", 0, (JOB,), 1)).jobs
    assert not job.is_tagged
    assert [(turn.tool_s, turn.pause_s) for turn in job.turns] == [(0.0, 1.5), (0.0, 0.0)]


@pytest.mark.parametrize(("cached", "share"), [(0, 0.0), (32, 0.5), (64, 1.0), (96, 1.0)])
def test_cacheable_are_the_full_blocks_of_the_prompt_before(cached: int, share: float) -> None:
    """A prompt of 70 tokens fills two blocks of 32; blocks of the reply add nothing."""
    turns = tuple(TurnOutcome(i, 0.0, 0.0, 0.0, 70 + 50 * i, i * cached, 5, 0.0) for i in range(2))
    job = JobOutcome("a", 0.0, 1.0, "done", turns)
    assert found_share(RunOutcome("fcfs", {}, (job,))) == share
