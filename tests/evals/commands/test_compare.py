"""`agentkv compare` without a server: usage, resuming, the order of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.errors import InputError
from agentkv.evals.commands.compare import CORES, CPU, ComparePlan, check_folders, run_all
from agentkv.evals.rivals import Rival
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import server_policy
from tests.evals.made_runs import job, run, write_run

DESCRIBED = {"name": "reference", "seed": 0}
FLAGS = ("--block-size", "32")
GOLDEN_RUNS = Path(__file__).parents[2] / "golden" / "inputs" / "compare"


def make_plan(out: Path, **fields: Any) -> ComparePlan:
    values: dict[str, Any] = {
        "policies": (server_policy("fcfs"), server_policy("continuum:released")),
        "repeats": 2,
        "workload": make_workload("reference", num_jobs=1, seed=0, jps=1.0),
        "described": DESCRIBED,
        "model": None,
        "server_flags": FLAGS,
        "out": out,
        "ready_timeout_s": 1.0,
        "limit_s": None,
    }
    return ComparePlan(**(values | fields))


def test_servers_with_a_tier_and_without_compute_on_the_same_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's CPU build would give them different ones; without a tier it is left alone."""
    monkeypatch.delenv(CORES, raising=False)
    assert make_plan(tmp_path).environment == {}
    tiered = (server_policy("fcfs"), server_policy("fcfs+offload"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 0})
    assert make_plan(tmp_path, policies=tiered).environment == {CORES: "0,1"}
    monkeypatch.setenv(CORES, "1")
    assert make_plan(tmp_path, policies=tiered).environment == {CORES: "1"}


def write_all(plan: ComparePlan, **metadata: Any) -> None:
    for policy, repeat in plan.runs():
        facts = {"repeat": repeat, "config": {"server_flags": list(FLAGS)}} | metadata
        made = run(job(), policy=policy.name, workload=DESCRIBED, metadata=facts)
        write_run(plan.folder(policy, repeat), made)


def test_repeats_are_interleaved(tmp_path: Path) -> None:
    """Runs alternate between policies, so a machine that slows down slows all alike."""
    runs = make_plan(tmp_path).runs()
    assert [repeat for _, repeat in runs] == [0, 0, 1, 1]
    assert [policy.name for policy, _ in runs] == ["fcfs", "continuum:released"] * 2


def test_runs_of_other_jobs_are_not_resumed(tmp_path: Path) -> None:
    """Complete runs are read again; of other jobs or with other server flags they are refused."""
    write_all(plan := make_plan(tmp_path))
    assert [run.policy for run in run_all(plan, resume=True)] == [p.name for p, _ in plan.runs()]
    for other in (
        {"described": {"name": "bfcl"}},
        {"server_flags": ("--block-size", "64")},
        {"mode": "live"},
        {"max_output_tokens": 64},
        {"policies": tuple(Rival(p.name, ("--max-num-seqs", "4")) for p in plan.policies)},
    ):
        with pytest.raises(InputError, match="was made with another"):
            list(run_all(make_plan(tmp_path, **other), resume=True))


def test_runs_on_disk_are_not_overwritten(tmp_path: Path) -> None:
    """Runs that exist are refused unless they are resumed or --force is given."""
    plan = make_plan(tmp_path)
    check_folders(plan, resume=False, force=False)
    write_all(plan)
    with pytest.raises(InputError, match="--resume"):
        check_folders(plan, resume=False, force=False)
    check_folders(plan, resume=True, force=False)
    check_folders(plan, resume=False, force=True)


def test_the_jobs_of_the_demo_fit_its_server() -> None:
    """Every context is within --max-model-len, and that within the pool's blocks."""
    given = dict(CPU.workload)
    jobs = make_workload(given.pop("workload"), seed=0, num_jobs=given.pop("jobs"), **given).jobs
    flags = dict(zip(CPU.server_flags[::2], CPU.server_flags[1::2], strict=True))
    assert max(job.context_tokens for job in jobs) <= int(flags["--max-model-len"])
    assert int(flags["--max-model-len"]) <= (CPU.num_blocks - 1) * int(flags["--block-size"])


def test_a_server_that_does_not_start_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A server that fails gives status 1, the end of its log, and a document without runs."""
    options = ("--policy", "fcfs", "--out", str(tmp_path), "--model", str(tmp_path / "no-model"))
    assert agentkv(["compare", *options]) == 1
    captured = capsys.readouterr()
    assert "no model in" in captured.err
    found = json.loads(captured.out.splitlines()[-1])
    assert found["runs"] == []
    assert "no model in" in found["ended_early"]
