"""The grid: loads, parts of a trace, and 1x."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentkv.errors import InputError
from agentkv.evals.simulator.machine import Limits, Machine, make_machine
from agentkv.evals.workload.plans import JobPlan, TurnPlan
from agentkv.evals.workload.traces import read_traced_jobs
from studies.policy_grid.grid import (
    DEFAULT_LOADS,
    Load,
    capacity,
    is_held_out,
    parse_load,
    trace_of_part,
)


def machine(num_blocks: int = 1001) -> Machine:
    return make_machine("h100", "llama-3.1-8b", Limits(num_blocks=num_blocks))


def job(tool_s: float = 2.0) -> JobPlan:
    return JobPlan("a", 0.0, (TurnPlan(1000, 100, "ls", tool_s), TurnPlan(500, 50, "", 0.0)))


def test_memory_bounds_the_rate_by_littles_law() -> None:
    """Pool tokens over memory_jps is the token-seconds of a job, which grow by its tools' time."""
    short, long = (
        machine().pool_tokens / capacity([job(tool_s)], machine()).memory_jps
        for tool_s in (2.0, 3.0)
    )
    assert long - short == pytest.approx(1100.0)
    found = capacity([job(1e6)], machine())
    assert found.num_resident == pytest.approx(machine().pool_tokens / 1100.0, rel=0.01)


def test_one_x_is_the_lower_rate() -> None:
    """1x is the rate of memory in a small pool and that of compute in a large one."""
    small, large = capacity([job()], machine(300)), capacity([job()], machine(60_000))
    assert small.one_x_jps == small.memory_jps < small.compute_jps
    assert large.one_x_jps == large.compute_jps < large.memory_jps


def test_larger_batches_compute_more() -> None:
    """The rate of compute grows with the contexts that share a reading of the weights."""
    rates = [capacity([job()], machine(blocks)).compute_jps for blocks in (200, 1000, 5000)]
    assert rates == sorted(rates)
    few = replace(machine(5000), max_num_seqs=1)
    assert capacity([job()], few).compute_jps < rates[-1]


@pytest.mark.parametrize(
    ("text", "load", "arrivals"),
    [
        ("overload", Load("overload", 4.0), "poisson"),
        ("3x=3", Load("3x", 3.0), "poisson"),
        ("light=0.05", Load("light", 0.05), "poisson"),
        ("burst", Load("burst", 1.0), "burst"),
        ("burst-2x=2", Load("burst-2x", 2.0), "burst"),
        ("closed-32", Load("closed-32", concurrency=32), "poisson"),
    ],
)
def test_a_load_has_a_multiple_or_a_size(text: str, load: Load, arrivals: str) -> None:
    """A load is a known name, NAME=MULTIPLE or closed-N; names of bursts start with burst."""
    assert parse_load(text) == load
    assert load.arrivals == arrivals


def test_the_default_loads_differ() -> None:
    """The seven default loads are valid and distinct."""
    assert len({parse_load(name) for name in DEFAULT_LOADS}) == 7


@pytest.mark.parametrize(
    "text", ["", "heavy", "x=", "x=0", "x=-1", "x=nan", "x=inf", "closed-0", "closed=2", "=2"]
)
def test_other_loads_are_refused(text: str) -> None:
    """The error for an invalid load lists the valid ones."""
    with pytest.raises(InputError, match=r"--loads: got .*allowed are light"):
        parse_load(text)


def write_trace(path: Path, *job_ids: str) -> Path:
    turns = [
        {"job_id": job_id, "turn": turn, "prompt_tokens": 100, "output_tokens": 5}
        | {"command": "ls", "tool_s": 0.1}
        for job_id in job_ids
        for turn in range(2)
    ]
    path.write_text("\n".join(map(json.dumps, turns)))
    return path


def test_a_job_is_held_out_by_its_id_alone() -> None:
    """Three jobs in ten are held out (within four standard deviations), by a hash of the id."""
    assert 242 <= sum(is_held_out(f"job-{number}") for number in range(1000)) <= 358
    assert not is_held_out("django__django-11099")
    assert is_held_out("sympy__sympy-20590")


def test_the_parts_share_no_job_and_lack_none(tmp_path: Path) -> None:
    """The two parts of a trace make the whole, and `all` is the file itself."""
    trace = write_trace(tmp_path / "trace.jsonl", *(f"job-{number}" for number in range(40)))
    parts = [read_traced_jobs(trace_of_part(trace, p, tmp_path)) for p in ("tune", "held-out")]
    assert sorted([*parts[0], *parts[1]]) == sorted(read_traced_jobs(trace))
    assert all(parts)
    assert trace_of_part(trace, "all", tmp_path) == trace


def test_a_part_without_jobs_is_refused(tmp_path: Path) -> None:
    """The error for a part without jobs names the file and the part."""
    trace = write_trace(tmp_path / "trace.jsonl", "django__django-11099")
    with pytest.raises(InputError, match=r"trace\.jsonl: none of its jobs.*'held-out'"):
        trace_of_part(trace, "held-out", tmp_path)
