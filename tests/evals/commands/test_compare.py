"""`agentkv compare` without a server: usage, resuming, the order of runs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.errors import InputError, ServerStartError
from agentkv.evals.commands.compare import (
    CORES,
    CPU,
    DRY_RUN,
    GPU,
    ComparePlan,
    check_folders,
    expected_means,
    read_plan,
    run_all,
)
from agentkv.evals.commands.expectation import make_card, table_beside_simulator
from agentkv.evals.policies import server_policy
from agentkv.evals.rivals import Rival
from agentkv.evals.simulator.calibrate import StartedAs
from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.machine import Profile
from agentkv.evals.summary import compare
from agentkv.evals.workload.workloads import make_workload
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
        {"policies": tuple(Rival(p.name, ("--max-num-seqs", "4")) for p in plan.policies)},
    ):
        with pytest.raises(InputError, match="was made with another"):
            list(run_all(make_plan(tmp_path, **other), resume=True))


def test_html_has_every_policy_in_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--html writes the tables and figures of all runs, here of complete ones on disk."""
    out, path = tmp_path / "runs", tmp_path / "out.html"
    shutil.copytree(GOLDEN_RUNS, out)
    policies = ("--policy", "fcfs", "--policy", "continuum:paper", "--repeats", "2", "--seed", "5")
    flags = (*policies, "--resume", "--out", str(out), "--html", str(path))
    assert agentkv(["compare", *flags]) == 0
    assert "<td>fcfs</td>" in path.read_text()
    assert "<td>continuum:paper</td>" in path.read_text()
    assert path.read_text().count("data:image/svg+xml;base64,") >= 3
    assert "written to" in capsys.readouterr().err


def test_runs_on_disk_are_not_overwritten(tmp_path: Path) -> None:
    """Runs that exist are refused unless they are resumed or --force is given."""
    plan = make_plan(tmp_path)
    check_folders(plan, resume=False, force=False)
    write_all(plan)
    with pytest.raises(InputError, match="--resume"):
        check_folders(plan, resume=False, force=False)
    check_folders(plan, resume=True, force=False)
    check_folders(plan, resume=False, force=True)


@pytest.mark.parametrize("profile", [CPU, DRY_RUN, GPU])
def test_a_profiles_jobs_fit_its_server(profile: Any) -> None:
    """Every context is within --max-model-len, and that within the profile's blocks."""
    given = dict(profile.workload)
    workload = make_workload(
        given.pop("workload"),
        seed=0,
        num_jobs=given.pop("jobs", None),
        duration_s=given.pop("duration", None),
        max_turns=given.pop("turns", None),
        **given,
    )
    flags = dict(zip(profile.server_flags[::2], profile.server_flags[1::2], strict=True))
    longest = max(job.context_tokens for job in workload.jobs)
    assert longest <= int(flags["--max-model-len"])
    if profile.num_blocks is not None:
        capacity = (profile.num_blocks - 1) * int(flags.get("--block-size", 16))
        assert int(flags["--max-model-len"]) <= capacity


def test_the_simulators_means_stand_beside_the_measured_ones(tmp_path: Path) -> None:
    """With a card, each policy but a rival has its simulated mean and ratio in a second table."""
    names = ("fcfs", "agentkv", "agentkv+offload")
    policies = (*map(server_policy, names), Rival("other", ()))
    flags = ("--num-gpu-blocks-override", "400")
    card = make_card("rtx-5090", "llama-3.1-8b", flags, tmp_path, num_rounds=1)
    plan = make_plan(tmp_path, policies=policies, card=card)
    measured = Profile(
        name="rtx-5090, measured",
        model="llama-3.1-8b",
        step=FittedLine(0.02, 1e-4, 0.0, 1e-4, 1e-7),
        request_s=0.01,
        num_blocks=400,
        block_tokens=16,
        kv_token_bytes=131_072,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_tokens=6000,
    )
    (tmp_path / "profile.json").write_text(measured.model_dump_json())
    expected = expected_means(plan)
    assert list(expected) == ["rtx-5090", "rtx-5090, measured"]
    assert all(tuple(means_s) == names for means_s in expected.values())
    expected_s = expected["rtx-5090"]
    assert expected_s["fcfs"] == pytest.approx(expected_s["agentkv"])  # one job is alone
    runs = [run(job(), policy=p.name, workload=DESCRIBED, metadata={"repeat": 0}) for p in policies]
    results = compare(runs, "fcfs")
    lines = table_beside_simulator(results, expected_s, "fcfs", "rtx-5090").splitlines()
    assert lines[0] == "Simulated on rtx-5090:"
    assert [line.split()[0] for line in lines[3:]] == list(names)
    assert f"{expected_s['fcfs']:.2f}" in lines[3]
    assert expected_means(make_plan(tmp_path)) == {}


def test_the_first_server_is_measured_once(tmp_path: Path) -> None:
    """A run on disk is made again only as long as its server must still be measured."""
    card = make_card("h100", "llama-3.1-8b", (), tmp_path, num_rounds=1)
    write_all(plan := make_plan(tmp_path, card=card, ready_timeout_s=0.01))
    with pytest.raises(ServerStartError):
        next(run_all(plan, resume=True))
    (tmp_path / "profile.json").touch()
    assert next(run_all(plan, resume=True)).policy == "fcfs"


def test_a_gpu_run_downloads_nothing(tmp_path: Path) -> None:
    """--gpu serves the catalog's model from a folder of our own, its weights made up by vLLM."""
    out = tmp_path / "runs"
    with pytest.raises(InputError, match="no-card"):
        read_plan(["--gpu", "no-card", "--out", str(out)])
    assert not out.exists()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be written"):
        read_plan(["--gpu", "--out", str(tmp_path / "file")])
    options = ["--gpu", "--jobs", "1", "--out", str(out)]
    _, plan = read_plan([*options, "--", "--max-num-seqs", "32"])
    assert plan.model == str(out / "model")
    flags = " ".join(plan.server_flags)
    assert "--load-format dummy --served-model-name llama-3.1-8b" in flags
    assert flags.endswith("--num-gpu-blocks-override 3000 --max-num-seqs 32")
    assert plan.card is not None
    [machine] = plan.card.machines()
    assert (machine.name, machine.num_blocks, machine.max_num_seqs) == ("h100", 3000, 32)
    assert plan.card.started_as == StartedAs("h100, measured", 32, 8192, 131_072)
    assert [p.name for p in plan.policies[4:7]] == [
        "agentkv",
        "fcfs+offload",
        "continuum:paper+offload",
    ]
    with pytest.raises(InputError, match="with --dram-gib"):
        read_plan([*options, "--", "--kv-tier-gib", "8"])
    _, other = read_plan(["--gpu", "--model", "some/model", "--out", str(out)])
    assert other.model == "some/model"
    assert other.card is not None
    assert other.card.machines() == []  # until its server is measured


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
