"""The replay of Qwen Code in the study of the CPU server, and what is counted of a run."""

from __future__ import annotations

import json

import pytest

from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from agentkv.evals.player.job import Windows
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.evals.workload.sample_text import sample_text
from studies.cpu_server.untagged import SHELL, QwenCode, found_share, without_tags

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
