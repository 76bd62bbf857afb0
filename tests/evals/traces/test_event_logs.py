"""A server's event log as a workload."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.traces.logs import is_event_log, read_turns
from agentkv.evals.traces.turns import job_plans, jobs_among
from agentkv.evals.workload.plans import JobPlan, TurnPlan, with_children
from agentkv.evals.workload.workloads import make_workload
from tests.evals.event_log.rows import (
    ROW,
    TWO_TURNS,
    arrival,
    event,
    finish,
    start,
    tool,
    write_record,
)


def turn(number: int, at_s: float, prompt: int, output: int, **details: Any) -> list[ROW]:
    """A turn that starts at once and takes a second."""
    done = finish(at_s + 1.0, number, 0, output)
    return [arrival(at_s, number, prompt) | details, start(at_s, prompt, 0, 0), done]


def jobs_of(folder: Path, **jobs: list[ROW]) -> list[JobPlan]:
    path = write_record(folder / "scheduler_timestamps.jsonl", **jobs)
    return job_plans(jobs_among(read_turns(path)))


def without_pauses(jobs: Sequence[JobPlan]) -> list[JobPlan]:
    """The jobs as they are compared: arrivals, pauses and prefixes apart."""
    return [
        replace(
            job,
            arrival_s=0.0,
            prefixes=(),
            turns=tuple(
                replace(plan, pause_s=0.0, children=tuple(without_pauses(plan.children)))
                for plan in job.turns
            ),
        )
        for job in jobs
    ]


@pytest.mark.parametrize("name", ["swebench", "bfcl", "deep-research", "coding"])
def test_a_simulated_log_is_the_workload_that_it_was_made_from(name: str, tmp_path: Path) -> None:
    """Jobs, children, tokens, commands and tools are equal; times differ by a step at most."""
    from tests.evals.simulator.simulated import machine, simulate  # loads vLLM

    planned = make_workload(name, seed=2, num_jobs=12, jps=2.0, token_scale=0.1, max_turns=6)
    _, run = simulate(planned, "agentkv", machine(4000), record_events=100_000)
    (tmp_path / "timestamps.json").write_text(json.dumps(run.record))
    found = job_plans(jobs_among(read_turns(tmp_path)))
    assert without_pauses(found) == without_pauses(planned.jobs)
    first_s = planned.jobs[0].arrival_s
    for job, plan in zip(found, planned.jobs, strict=True):
        assert job.arrival_s == pytest.approx(plan.arrival_s - first_s, abs=0.1)
    pauses_s = [turn.pause_s for job in with_children(found) for turn in job.turns]
    assert max(pauses_s) < 0.1


def test_a_turn_adds_what_the_prompt_grew_by(tmp_path: Path) -> None:
    """A measured tool has its own time and the rest of the gap is a pause; the last has neither."""
    (job,) = jobs_of(tmp_path, a=TWO_TURNS)
    # at least 13 output tokens fill the 112 of the context in the log, which does not say
    first, last = job.turns
    assert replace(first, pause_s=0.0) == TurnPlan(100, 13, "pytest -q", 2.8)
    assert first.pause_s == pytest.approx(0.2)
    assert last == TurnPlan(47, 17, "", 0.0)


@pytest.mark.parametrize(
    ("between", "command", "tool_s", "pause_s"),
    [
        ([], "", 0.0, 4.0),
        ([tool(2.5, "started", "ls"), tool(3.0, "finished", "ls", 0.5)], "ls", 0.5, 3.5),
        ([tool(2.5, "started", "ls"), tool(3.0, "finished", "ls")], "ls", 0.5, 3.5),
        ([tool(2.5, "started", "ls")], "ls", 3.5, 0.5),
        (
            [
                *(tool(2.0, "started", "ls"), tool(2.5, "started", "make")),
                *(tool(3.0, "finished", "ls", 1.0), tool(5.0, "finished", "make", 2.5)),
            ],
            "ls\nmake",
            3.0,
            1.0,
        ),
        ([event("decision", 2.0, told_by="reply", command="pip list")], "pip list", 4.0, 0.0),
        ([event("decision", 2.0, told_by="client", command="ls")], "", 0.0, 4.0),
    ],
)
def test_what_runs_between_two_turns(
    tmp_path: Path, between: list[ROW], command: str, tool_s: float, pause_s: float
) -> None:
    """One tool has its measured time, several that from first to last, an unknown one the gap."""
    rows = [*turn(1, 1.0, 50, 10), *between, *turn(2, 6.0, 100, 10)]
    (job,) = jobs_of(tmp_path, a=rows)
    first = job.turns[0]
    assert first.command == command
    assert [first.tool_s, first.pause_s] == pytest.approx([tool_s, pause_s])


def test_a_child_is_part_of_the_turn_that_waited_for_it(tmp_path: Path) -> None:
    """A job that ran between two turns of its parent is their child; others are jobs."""
    (job, late) = jobs_of(
        tmp_path,
        lead=[*turn(1, 10.0, 50, 10), tool(11.0, "started", "research"), *turn(2, 19.0, 90, 10)],
        worker=turn(1, 12.0, 30, 10, parent="lead"),
        background=turn(1, 18.5, 30, 10, parent="lead"),
    )
    (worker,) = job.turns[0].children
    assert (worker.job_id, worker.arrival_s, worker.role) == ("worker", 1.0, "sub-agent")
    assert (job.turns[0].command, job.turns[0].tool_s, job.turns[0].pause_s) == ("research", 0.0, 6)
    assert (late.job_id, late.arrival_s, late.role) == ("background", 8.5, "agent")


def test_only_turns_that_finished_count(tmp_path: Path) -> None:
    """Retries, aborted turns and turns under way are left out; so are jobs without another turn."""
    aborted = [arrival(9.0, 2, 80), start(9.0, 80, 0, 0), event("aborted", 9.5)]
    retried = turn(1, 3.0, 50, 10, retry=True)
    (job,) = jobs_of(tmp_path, a=[*turn(1, 1.0, 50, 10), *retried, *aborted], b=aborted)
    assert job.turns == (TurnPlan(50, 10, "", 0.0),)
    with pytest.raises(InputError, match="no turn in it that finished"):
        jobs_of(tmp_path, b=aborted)


@pytest.mark.parametrize(
    ("text", "is_log"),
    [
        ('\n{"job_id": "a", "event": "arrival"}\n', True),
        ('{"jobs": {}}', True),
        ('{"job_id": "a", "turn": 0}\n', False),
        ("", False),
    ],
)
def test_a_log_is_told_from_a_trace(tmp_path: Path, text: str, is_log: bool) -> None:
    """The first line says which of the two a file is, and a folder's files what a folder is."""
    path = tmp_path / "file"
    path.write_text(text)
    assert is_event_log(path) == is_log
    assert not is_event_log(tmp_path)
    path.rename(tmp_path / "timestamps.json")
    assert is_event_log(tmp_path)
    assert not is_event_log(tmp_path / "missing")


def test_a_logs_jobs_arrive_at_a_rate(tmp_path: Path) -> None:
    """At a rate its jobs come in a seeded order, and again with children under other names."""
    lead = [*turn(1, 10.0, 50, 10), *turn(2, 19.0, 90, 10)]
    path = write_record(
        tmp_path / "log.jsonl",
        lead=lead,
        worker=turn(1, 12.0, 30, 10, parent="lead"),
        other=turn(1, 1.0, 70, 5),
    )
    jobs = make_workload("trace", trace=path, seed=0, num_jobs=4, jps=1.0).jobs
    names = [job.job_id for job in with_children(jobs)]
    assert sorted(names) == ["lead", "lead#2", "other", "other#2", "worker", "worker#2"]
