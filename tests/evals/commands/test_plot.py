"""`agentkv plot`: which figures it writes, and what it does with rows it cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.commands.plot import main
from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.figures.made_runs import made_run, swept, write_runs


def plot(rows: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([str(rows), "--out", str(out), *more]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def names(document: dict[str, Any]) -> list[str]:
    return [Path(row["file"]).name for row in document["figures"]]


def test_a_sweep_gives_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are PNG files."""
    rows = write_runs(tmp_path / "rows", swept(loads=(2, 12), seeds=(0, 1)))
    document = plot(rows, tmp_path / "out", capsys)
    assert names(document) == [
        "jps_sweep_rtx6000.png",
        "ttft_rtx6000.png",
        "hit_rate_rtx6000.png",
        "policies_rtx6000.png",
        "duration_cdf_rtx6000.png",
        "latency_by_turn_rtx6000.png",
        "timeline_rtx6000.png",
        "jps_sweep_combined.png",
        "jps_sweep_speedup.png",
    ]
    assert document["skipped"] == []
    for row in document["figures"]:
        assert Path(row["file"]).read_bytes().startswith(b"\x89PNG")


def test_every_gpu_gets_its_own_and_a_place_in_the_combined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """jps_sweep_<gpu>.png for each of them."""
    made = swept(loads=(2, 12), seeds=(0,)) + swept(loads=(5, 25), seeds=(0,), gpu="a100")
    rows = write_runs(tmp_path / "rows", made)
    kinds = ("--kind", "sweep", "--kind", "combined")
    assert names(plot(rows, tmp_path / "out", capsys, *kinds)) == [
        "jps_sweep_rtx6000.png",
        "jps_sweep_a100.png",
        "jps_sweep_combined.png",
    ]


def test_one_load_gives_the_policies_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What compare writes; nothing is drawn against a load that does not vary."""
    made = [made_run(name, repeat=n, gpu=None) for n in range(3) for name in ("fcfs", "continuum")]
    rows = write_runs(tmp_path / "rows", made)
    assert names(plot(rows, tmp_path / "out", capsys)) == [
        "policies_server.png",
        "duration_cdf_server.png",
        "latency_by_turn_server.png",
        "timeline_server.png",
    ]


def test_a_closed_loop_is_swept_by_its_concurrency(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file says so."""
    made = [made_run("fcfs", None, concurrency=n) for n in (4, 8)]
    rows = write_runs(tmp_path / "rows", made)
    kinds = ("--kind", "sweep")
    assert names(plot(rows, tmp_path / "out", capsys, *kinds)) == ["concurrency_sweep_rtx6000.png"]


def test_runs_without_a_load_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs may arrive at given times."""
    rows = write_runs(tmp_path / "rows", [made_run("fcfs", None)])
    kinds = ("--kind", "policies", "--kind", "cdf", "--kind", "sweep")
    assert len(names(plot(rows, tmp_path / "out", capsys, *kinds))) == 2


def test_a_policy_missing_at_some_loads_is_drawn_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One load of continuum, another of fcfs: not even the same jobs."""
    made = [*swept(("fcfs",), (2, 12), seeds=(0,)), made_run("continuum", 5)]
    kinds = ("--kind", "sweep", "--kind", "speedup", "--kind", "policies")
    document = plot(write_runs(tmp_path / "rows", made), tmp_path / "out", capsys, *kinds)
    assert names(document) == ["jps_sweep_rtx6000.png", "policies_rtx6000.png"]
    (skipped,) = document["skipped"]
    assert "needs runs of fcfs and of another policy" in skipped["why"]


def test_without_a_baseline_all_but_the_savings_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the reason is told."""
    rows = write_runs(tmp_path / "rows", swept(("continuum", "agentkv"), (2, 12), seeds=(0,)))
    kinds = ("--kind", "timeline", "--kind", "speedup")
    document = plot(rows, tmp_path / "out", capsys, *kinds)
    assert names(document) == ["timeline_rtx6000.png"]
    (skipped,) = document["skipped"]
    assert "needs runs of fcfs" in skipped["why"]
    other = ("--kind", "speedup", "--baseline", "continuum")
    assert names(plot(rows, tmp_path / "out", capsys, *other)) == ["jps_sweep_speedup.png"]


def test_a_baseline_that_no_run_has_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the pen must not give figures without their ratios."""
    rows = write_runs(tmp_path, [made_run("fcfs"), made_run("continuum")])
    assert main([str(rows), "--out", str(tmp_path / "f"), "--baseline", "contiuum"]) == 2
    assert "got 'contiuum', the rows have fcfs, continuum" in capsys.readouterr().err


def test_runs_with_no_job_in_common_have_no_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other figures are drawn."""
    other = made_run("continuum")
    turn = TurnOutcome(0, 0.0, 0.5, 1.0, 10, 0, 5, 0.0)
    job = JobOutcome("elsewhere", 0.0, 1.0, "done", (turn,))
    runs = [made_run("fcfs"), RunOutcome("continuum", other.workload, (job,), {}, other.metadata)]
    kinds = ("--kind", "timeline", "--kind", "turns")
    document = plot(write_runs(tmp_path / "rows", runs), tmp_path / "out", capsys, *kinds)
    assert [row["kind"] for row in document["skipped"]] == ["timeline"]


def test_failed_turns_are_drawn_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A turn that got no token, in a run with jobs that were cut."""
    run = made_run("fcfs", num_jobs=6)
    broken = TurnOutcome(0, 0.0, None, 2.0, 0, 0, 0, 0.0, error="connection lost")
    jobs = (*run.jobs, JobOutcome("broken", 0.0, 2.0, "failed", (broken,)))
    rows = write_runs(tmp_path / "rows", [RunOutcome("fcfs", run.workload, jobs, {}, run.metadata)])
    assert len(names(plot(rows, tmp_path / "out", capsys))) == 4


def test_the_same_rows_give_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure changes only where its rows do."""
    rows = write_runs(tmp_path / "rows", swept(loads=(2, 12), seeds=(0,)))
    for out in ("one", "two"):
        plot(rows, tmp_path / out, capsys, "--kind", "sweep")
    one, two = (tmp_path / out / "jps_sweep_rtx6000.png" for out in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_figures_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless --force says so."""
    rows = write_runs(tmp_path / "rows", [made_run("fcfs")])
    plot(rows, tmp_path / "out", capsys, "--kind", "cdf")
    assert main([str(rows), "--out", str(tmp_path / "out")]) == 2
    assert "duration_cdf_rtx6000.png exists" in capsys.readouterr().err
    plot(rows, tmp_path / "out", capsys, "--kind", "cdf", "--force")


def test_a_sweep_of_one_load_is_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message says what is needed."""
    rows = write_runs(tmp_path / "rows", [made_run("fcfs")])
    assert main([str(rows), "--out", str(tmp_path / "out"), "--kind", "sweep"]) == 2
    assert "needs runs under more than one load" in capsys.readouterr().err


def test_rows_that_are_not_there_are_bad_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the place."""
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "none" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named, without a traceback."""
    rows = write_runs(tmp_path / "rows", [made_run("fcfs")])
    assert main([str(rows), "--out", "/proc/none"]) == 1
    assert "cannot write into /proc/none" in capsys.readouterr().err
