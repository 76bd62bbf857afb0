"""The bound that the agentkv policy states: after the patience, no later job goes first."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, NamedTuple

from .simulated import machine, random_jobs, simulate

PATIENCE_S = 1.0


class Wait(NamedTuple):
    """A turn's way through the queue, until it first has blocks."""

    job_order: int
    is_first: bool
    arrived_s: float
    admitted_s: float


def waits_of(record: dict[str, Any]) -> list[Wait]:
    """All turns of a record, and when they arrived and were admitted."""
    jobs = sorted(record["jobs"].values(), key=lambda events: float(events[0]["at_s"]))
    waits = []
    for order, events in enumerate(jobs):
        queueing = [
            event for event in events if event["event"] in ("arrival", "waiting_to_running")
        ]
        for arrival, admission in pairwise(queueing):
            if arrival["event"] == "arrival":
                assert admission["event"] == "waiting_to_running"
                is_first = arrival is queueing[0]
                waits.append(Wait(order, is_first, arrival["at_s"], admission["at_s"]))
    return waits


def overtaken(waits: list[Wait], patience_s: float) -> list[tuple[Wait, Wait]]:
    """Continuing turns beyond the patience, each with a turn of a later job that went first."""
    return [
        (wait, other)
        for wait in waits
        if not wait.is_first and wait.admitted_s - wait.arrived_s > patience_s
        for other in waits
        if other.job_order > wait.job_order
        and wait.arrived_s + patience_s < other.admitted_s < wait.admitted_s
    ]


def waits_under_pressure(**settings: Any) -> list[Wait]:
    """Of more jobs than fit, within five seconds."""
    workload = random_jobs(60, seed=1)
    policy = f"agentkv{json.dumps({'patience_s': PATIENCE_S, **settings})}"
    _, run = simulate(workload, policy, machine(120), record_events=100_000)
    assert run.record is not None
    waits = waits_of(run.record)
    assert len(waits) == sum(len(job.turns) for job in workload.jobs)
    return waits


def test_no_later_job_goes_before_a_turn_that_has_waited_for_the_patience() -> None:
    """Though a good many turns wait for longer."""
    waits = waits_under_pressure()
    overdue = [w for w in waits if not w.is_first and w.admitted_s - w.arrived_s > PATIENCE_S]
    assert len(overdue) >= 10
    assert overtaken(waits, PATIENCE_S) == []


def test_without_the_order_of_jobs_later_ones_do() -> None:
    """So the check above could fail."""
    assert overtaken(waits_under_pressure(without=["order"]), PATIENCE_S)
