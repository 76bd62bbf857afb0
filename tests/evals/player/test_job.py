"""Jobs with children, and people's conversations, on a server that speaks real HTTP."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.player.run import load_server
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload
from agentkv.policies.names import server_policy
from tests.evals.fake_vllm import FakeVllm

LAST = TurnPlan(10, 2, "", 0.0)


def child(number: int, tool_s: float) -> JobPlan:
    turns = (TurnPlan(20, 2, "search --id 1", tool_s), LAST)
    return JobPlan(f"lead.{number}", 0.0, turns, role="sub-agent")


LEAD = JobPlan(
    "lead",
    0.0,
    (TurnPlan(30, 2, "run_subagents", 0.0, children=(child(1, 0.05), child(2, 0.3))), LAST),
)
CHAT = JobPlan("chat", 0.0, (TurnPlan(30, 2, "", 0.0, pause_s=0.3), LAST), role="chat")


def play(
    *jobs: JobPlan, interrupted_after: int | None = None
) -> tuple[RunOutcome, list[dict[str, Any]], str | None]:
    """The run, the bodies of its requests, and why it ended early: by SIGINT after some."""

    def interrupt(num_requests: int) -> None:
        while len(server.requests) < num_requests:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with FakeVllm(policy="agentkv") as server:
        if interrupted_after is not None:
            threading.Thread(target=interrupt, args=[interrupted_after], daemon=True).start()
        workload, policy = Workload("made", 0, jobs, None), server_policy("agentkv")
        run, reason = load_server(workload, {}, server.base_url, policy=policy)
    return run, server.requests, reason


def test_a_parent_waits_for_all_of_its_children() -> None:
    """Children run at once while the parent's tool runs, and the server knows whose they are."""
    run, requests, _ = play(LEAD)
    by_id = {job.job_id: job for job in run.jobs}
    assert {job.status for job in run.jobs} == {"done"}
    assert {name: job.role for name, job in by_id.items()} == {
        **{"lead": "agent", "lead.1": "sub-agent", "lead.2": "sub-agent"}
    }
    first, second = by_id["lead"].turns
    assert second.sent_s >= by_id["lead.2"].ended_s > by_id["lead.1"].ended_s
    assert first.tool_s == pytest.approx(by_id["lead.2"].ended_s - first.ended_s, abs=0.1)
    parents = {
        request["job_id"].partition("-")[2]: (request.get("parent_job_id") or "").partition("-")[2]
        for request in requests
        if "job_id" in request
    }
    assert parents == {"lead": "", "lead.1": "lead", "lead.2": "lead"}


def test_a_person_sends_no_tags_and_pauses_between_turns() -> None:
    """A conversation's requests name no job, and its pause is no tool's time."""
    run, requests, _ = play(CHAT)
    [chat] = run.jobs
    assert (chat.status, chat.role) == ("done", "chat")
    assert not any("job_id" in request for request in requests)
    first, second = chat.turns
    assert first.tool_s == 0.0
    assert second.sent_s - first.ended_s == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(("plan", "num_jobs"), [(LEAD, 3), (CHAT, 1)])
def test_jobs_and_children_are_cut_together(plan: JobPlan, num_jobs: int) -> None:
    """A run that ends during a pause or a fan-out keeps all that had begun, as cut."""
    run, _, reason = play(plan, interrupted_after=num_jobs)
    assert reason == "interrupted (SIGINT)"
    assert len(run.jobs) == num_jobs
    assert {job.status for job in run.jobs} <= {"cut", "done"}
    assert run.jobs[0].status == "cut"


@pytest.mark.parametrize("is_named", [True, False])
def test_a_policy_of_a_file_is_measured_by_its_class_name(*, is_named: bool) -> None:
    """A server under a policy of one's own is loaded, whether the policy is asked for or not."""
    policy = server_policy("examples/policies/tail_lru.py:TailLRU") if is_named else None
    with FakeVllm(policy="TailLRU") as server:
        workload = Workload("made", 0, (CHAT,), None)
        run, reason = load_server(workload, {}, server.base_url, policy=policy)
    assert (reason, run.policy) == (None, "TailLRU")
