"""Which jobs of a trace are kept for the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.workload.traces import read_traced_jobs
from studies.policy_grid.grid import is_held_out, trace_of_part


def write_trace(path: Path, *job_ids: str) -> Path:
    turns = [
        {"job_id": job_id, "turn": turn, "prompt_tokens": 100, "output_tokens": 5}
        | {"command": "ls", "tool_s": 0.1}
        for job_id in job_ids
        for turn in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, turns)))
    return path


def test_about_three_in_ten_are_held_out() -> None:
    """Of a thousand names, within four standard deviations."""
    assert 242 <= sum(is_held_out(f"job-{number}") for number in range(1000)) <= 358


def test_a_job_stays_in_its_part() -> None:
    """Whatever else is there: its id alone decides."""
    assert [is_held_out(name) for name in ("django__django-11099", "sympy__sympy-20590")] == [
        False,
        True,
    ]


def test_the_parts_share_no_job_and_lack_none(tmp_path: Path) -> None:
    """Each with its jobs as they were."""
    trace = write_trace(tmp_path / "trace.jsonl", *(f"job-{number}" for number in range(40)))
    parts = [read_traced_jobs(trace_of_part(trace, p, tmp_path)) for p in ("tune", "held-out")]
    assert sorted([*parts[0], *parts[1]]) == sorted(read_traced_jobs(trace))
    assert all(parts)


def test_all_is_the_file_itself(tmp_path: Path) -> None:
    """Nothing is copied."""
    trace = write_trace(tmp_path / "trace.jsonl", "a")
    assert trace_of_part(trace, "all", tmp_path) == trace


def test_a_part_without_jobs_is_told(tmp_path: Path) -> None:
    """With the file's name."""
    trace = write_trace(tmp_path / "trace.jsonl", "django__django-11099")
    with pytest.raises(InputError, match=r"trace\.jsonl: none of its jobs.*'held-out'"):
        trace_of_part(trace, "held-out", tmp_path)
