"""What the simulated server is told, and that policies act on it as on a real server."""

from __future__ import annotations

from typing import Any

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


def test_a_job_is_told_as_the_client_tells_it() -> None:
    """Each turn's arrival and end, each tool's start and end, then the release."""
    events = events_of(job("a", 0.0, (100, 5, 0.5), (50, 5, 0.0)), "continuum")
    told = [event["event"] for event in events if event["event"] not in ("pinned", "unpinned")]
    assert told == [
        "arrival",
        "waiting_to_running",
        "finish",
        "tool_started",
        "tool_finished",
        "arrival",
        "waiting_to_running",
        "finish",
        "closed",
    ]


def test_a_tool_takes_its_time_between_start_and_end() -> None:
    """In virtual time, and as the finished signal says."""
    events = events_of(job("a", 0.0, (100, 5, 0.5), (50, 5, 0.0)), "continuum")
    by_name = {event["event"]: event for event in events}
    started, finished = by_name["tool_started"], by_name["tool_finished"]
    assert abs(finished["at_s"] - started["at_s"] - 0.5) < 1e-5
    assert (started["command"], finished["duration_s"]) == ("ls", 0.5)


def test_a_pin_that_outlives_its_tool_makes_the_next_turn_a_hit() -> None:
    """All full blocks of the context are found."""
    _, run = simulate(one(job("a", 0.0, (100, 14, 0.5), (50, 5, 0.0))), "continuum")
    assert run.jobs[0].turns[1].cached_tokens == (100 + 14 - 1) // 16 * 16


def test_a_pin_ends_at_its_ttl_on_an_idle_server() -> None:
    """The released rules pin for 2 s; the tool takes 10."""
    events = events_of(job("a", 0.0, (100, 5, 10.0), (50, 5, 0.0)), "continuum:released")
    pinned = next(event for event in events if event["event"] == "pinned")
    unpinned = next(event for event in events if event["event"] == "unpinned")
    assert unpinned["reason"] == "expired"
    assert abs(unpinned["at_s"] - pinned["at_s"] - 2.0) < 1e-5


def test_context_serve_reads_the_command_of_each_reply() -> None:
    """It decides by the reply before the client has said anything, and frees what runs long."""
    plan = JobPlan("a", 0.0, (TurnPlan(100, 5, "docker build .", 30.0), TurnPlan(50, 5, "", 0.0)))
    events = events_of(plan, "context_serve")
    decision = next(event for event in events if event["event"] == "decision")
    assert decision["told_by"] == "reply"
    assert decision["speed"] == "slow"


def test_the_stock_scheduler_is_told_nothing() -> None:
    """A server without the plugin keeps no record, and no request carries tags."""
    _, run = simulate(one(job("a", 0.0, (100, 5, 0.5), (50, 5, 0.0))), "fcfs")
    assert run.record is None
