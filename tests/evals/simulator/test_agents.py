"""Simulated agents report to the server as real ones do, and policies act on it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentkv import parse_tool_calls
from agentkv.evals.simulator.agents import NO_COMMAND, Replies
from agentkv.evals.workload.plans import JobPlan, TurnPlan, Workload

from .simulated import job, machine, simulate

EVENTS = 10_000


def one(plan: JobPlan) -> Workload:
    return Workload("one", 0, (plan,), None)


def events_of(plan: JobPlan, policy: str) -> list[dict[str, Any]]:
    _, run = simulate(one(plan), policy, machine(1000), record_events=EVENTS)
    assert run.record is not None
    found: list[dict[str, Any]] = run.record["jobs"][plan.job_id]
    return found


TWO_TURNS = job("a", 0.0, (100, 14, 0.5), (50, 5, 0.0))


def test_the_server_gets_what_a_client_sends() -> None:
    """The server gets each turn, each tool's start and end with its duration, then the release."""
    events = events_of(TWO_TURNS, "continuum")
    of_memory = ("pinned", "unpinned", "reuse")
    names = [event["event"] for event in events if event["event"] not in of_memory]
    turn = ["arrival", "waiting_to_running", "finish"]
    assert names == [*turn, "tool_started", "tool_finished", *turn, "closed"]
    by_name = {event["event"]: event for event in events}
    started, finished = by_name["tool_started"], by_name["tool_finished"]
    assert abs(finished["at_s"] - started["at_s"] - 0.5) < 1e-5
    assert (started["command"], finished["duration_s"]) == ("ls", 0.5)


def test_a_pin_that_outlives_its_tool_makes_the_next_turn_a_hit() -> None:
    """A pin that outlives its tool makes all full blocks of the next turn a hit."""
    _, run = simulate(one(TWO_TURNS), "continuum")
    assert run.jobs[0].turns[1].cached_tokens == (100 + 14 - 1) // 16 * 16


def test_a_pin_ends_at_its_ttl_on_an_idle_server() -> None:
    """On an idle server a pin of the released rules expires after its 2 s."""
    events = events_of(job("a", 0.0, (100, 5, 10.0), (50, 5, 0.0)), "continuum:released")
    pinned = next(event for event in events if event["event"] == "pinned")
    unpinned = next(event for event in events if event["event"] == "unpinned")
    assert unpinned["reason"] == "expired"
    assert abs(unpinned["at_s"] - pinned["at_s"] - 2.0) < 1e-5


def test_context_serve_reads_the_command_of_each_reply() -> None:
    """context_serve decides by the reply's command, before the client reports it."""
    plan = JobPlan("a", 0.0, (TurnPlan(100, 5, "docker build .", 30.0), TurnPlan(50, 5, "", 0.0)))
    events = events_of(plan, "context_serve")
    decision = next(event for event in events if event["event"] == "decision")
    assert decision["told_by"] == "reply"
    assert decision["speed"] == "slow"


def test_the_stock_scheduler_gets_no_tags() -> None:
    """A stock server gets no tags and keeps no event log."""
    assert simulate(one(TWO_TURNS), "fcfs")[1].record is None


@given(st.lists(st.sampled_from(["ls", "cat a.py", "pytest -q && echo done", "grep -rn 'x' ."])))
def test_a_reply_reads_as_its_command(commands: list[str]) -> None:
    """A reply reads as its command, which has one token; a last reply contains no tool call."""
    replies = Replies()
    tokens = [replies.token_of(command) for command in commands]
    for command, token in zip(commands, tokens, strict=True):
        [call] = parse_tool_calls(replies.decode([token] * 3))
        assert call.command == command
        assert replies.token_of(command) == token
    assert replies.token_of("") == NO_COMMAND
    assert parse_tool_calls(replies.decode([NO_COMMAND])) == []
