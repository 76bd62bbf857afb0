"""The bound that the agentkv policy states: after the patience, no later job goes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentkv.evals.event_log.jobs import jobs_of
from agentkv.evals.event_log.reading import read_record
from agentkv.evals.event_log.totals import passed_over

from .simulated import machine, random_jobs, simulate

PATIENCE_S = 1.0


def under_pressure(folder: Path, **settings: Any) -> dict[str, Any]:
    """Of more jobs than fit, within five seconds."""
    workload = random_jobs(60, seed=1)
    policy = f"agentkv{json.dumps({'patience_s': PATIENCE_S, **settings})}"
    _, run = simulate(workload, policy, machine(120), record_events=100_000)
    path = folder / "timestamps.json"
    path.write_text(json.dumps(run.record))
    found = passed_over(jobs_of(read_record(str(path))), PATIENCE_S)
    num_turns = found["first"]["turns"] + found["continuing"]["turns"]
    assert num_turns == sum(len(job.turns) for job in workload.jobs)
    assert found["first"]["turns"] == len(workload.jobs)
    return found


def test_no_later_job_goes_before_a_turn_that_has_waited_for_the_patience(tmp_path: Path) -> None:
    """Though a good many turns wait for longer."""
    for kind, count in under_pressure(tmp_path).items():
        assert count["waited_longer"] >= 10, kind
        assert count["passed_over"] == count["most"] == 0, kind


def test_without_the_order_of_jobs_later_ones_do(tmp_path: Path) -> None:
    """So the check above could fail."""
    assert under_pressure(tmp_path, without=["order"])["continuing"]["passed_over"] > 0
