"""`agentkv plot`: which figures it writes, and what it does with rows it cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.commands.plot import main
from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.figures.made_runs import made_run, swept, write_runs


class Plot:
    """Calls the command on runs written below a folder of the test."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, runs: list[RunOutcome], *flags: str, out: str = "out") -> dict[str, Any]:
        """The document of a call that draws."""
        status, text = self.run(runs, *flags, out=out)
        assert status == 0, text
        document: dict[str, Any] = json.loads(text.splitlines()[-1])
        return document

    def run(self, runs: list[RunOutcome], *flags: str, out: str = "out") -> tuple[int, str]:
        """Exit status, and everything that was printed."""
        rows = self.folder / "rows"
        if not rows.exists():
            write_runs(rows, runs)
        status = main([str(rows), "--out", str(self.folder / out), *kinds(*flags)])
        printed = self._capsys.readouterr()
        return status, printed.err + printed.out


@pytest.fixture
def plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plot:
    return Plot(tmp_path, capsys)


def kinds(*flags: str) -> list[str]:
    """Words without dashes become `--kind WORD`; the others and what follows them stay."""
    found: list[str] = []
    for place, flag in enumerate(flags):
        is_value = place > 0 and flags[place - 1] == "--baseline"
        found += [flag] if flag.startswith("--") or is_value else ["--kind", flag]
    return found


def names(document: dict[str, Any]) -> list[str]:
    return [Path(row["file"]).name for row in document["figures"]]


def test_a_sweep_gives_every_figure(plot: Plot) -> None:
    """Runs under two loads give all nine figures, each a PNG file."""
    document = plot(swept(loads=(2, 12), seeds=(0, 1)))
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


def test_every_gpu_gets_its_own_and_a_place_in_the_combined(plot: Plot) -> None:
    """Two GPUs give two sweeps and one figure with both."""
    made = swept(loads=(2, 12), seeds=(0,)) + swept(loads=(5, 25), seeds=(0,), gpu="a100")
    assert names(plot(made, "sweep", "combined")) == [
        "jps_sweep_rtx6000.png",
        "jps_sweep_a100.png",
        "jps_sweep_combined.png",
    ]


def test_one_load_gives_the_policies_side_by_side(plot: Plot) -> None:
    """Repeats under one load, as compare writes them, give no figure against the load."""
    made = [made_run(name, repeat=n, gpu=None) for n in range(3) for name in ("fcfs", "continuum")]
    assert names(plot(made)) == [
        "policies_server.png",
        "duration_cdf_server.png",
        "latency_by_turn_server.png",
        "timeline_server.png",
    ]


def test_a_closed_loop_is_swept_by_its_concurrency(plot: Plot) -> None:
    """The sweep of runs with --concurrency has that in the name of its file."""
    made = [made_run("fcfs", None, concurrency=n) for n in (4, 8)]
    assert names(plot(made, "sweep")) == ["concurrency_sweep_rtx6000.png"]


def test_runs_without_a_load_are_drawn(plot: Plot) -> None:
    """Runs with given arrival times give every figure that needs no load."""
    assert len(names(plot([made_run("fcfs", None)], "policies", "cdf", "sweep"))) == 2


def test_a_policy_missing_at_some_loads_is_drawn_where_it_was_run(plot: Plot) -> None:
    """Policies under different loads share a sweep, and savings are skipped with the reason."""
    made = [*swept(("fcfs",), (2, 12), seeds=(0,)), made_run("continuum", 5)]
    document = plot(made, "sweep", "speedup", "policies")
    assert names(document) == ["jps_sweep_rtx6000.png", "policies_rtx6000.png"]
    (skipped,) = document["skipped"]
    assert "needs runs of fcfs and of another policy" in skipped["why"]


def test_savings_need_their_baseline(plot: Plot) -> None:
    """Without fcfs savings are skipped; --baseline names another policy for them."""
    made = swept(("continuum", "agentkv"), (2, 12), seeds=(0,))
    document = plot(made, "timeline", "speedup")
    assert names(document) == ["timeline_rtx6000.png"]
    (skipped,) = document["skipped"]
    assert "needs runs of fcfs" in skipped["why"]
    assert names(plot(made, "speedup", "--baseline", "continuum")) == ["jps_sweep_speedup.png"]


def test_runs_with_no_job_in_common_have_no_timeline(plot: Plot) -> None:
    """Policies that played different jobs are left out of the timeline alone."""
    other = made_run("continuum")
    turn = TurnOutcome(0, 0.0, 0.5, 1.0, 10, 0, 5, 0.0)
    job = JobOutcome("elsewhere", 0.0, 1.0, "done", (turn,))
    runs = [made_run("fcfs"), RunOutcome("continuum", other.workload, (job,), {}, other.metadata)]
    assert [row["kind"] for row in plot(runs, "timeline", "turns")["skipped"]] == ["timeline"]


def test_failed_turns_are_drawn_too(plot: Plot) -> None:
    """A run with a turn that got no token gives all its figures."""
    run = made_run("fcfs", num_jobs=6)
    broken = TurnOutcome(0, 0.0, None, 2.0, 0, 0, 0, 0.0, error="connection lost")
    jobs = (*run.jobs, JobOutcome("broken", 0.0, 2.0, "failed", (broken,)))
    assert len(names(plot([RunOutcome("fcfs", run.workload, jobs, {}, run.metadata)]))) == 4


def test_the_same_rows_give_the_same_bytes(plot: Plot) -> None:
    """A figure changes only if its rows do."""
    made = swept(loads=(2, 12), seeds=(0,))
    for out in ("one", "two"):
        plot(made, "sweep", out=out)
    one, two = (plot.folder / out / "jps_sweep_rtx6000.png" for out in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_figures_are_not_overwritten(plot: Plot) -> None:
    """A figure that exists is bad usage unless --force is given."""
    runs = [made_run("fcfs")]
    plot(runs, "cdf")
    status, text = plot.run(runs)
    assert status == 2
    assert "duration_cdf_rtx6000.png exists" in text
    plot(runs, "cdf", "--force")


@pytest.mark.parametrize(
    ("flags", "seen"),
    [
        (("sweep",), "needs runs under more than one load"),
        (("--baseline", "contiuum"), "got 'contiuum', the rows have fcfs"),
    ],
)
def test_a_wish_that_the_rows_cannot_meet_is_bad_usage(
    plot: Plot, flags: tuple[str, ...], seen: str
) -> None:
    """A sweep of one load and a misspelled baseline give status 2 and what is needed."""
    status, text = plot.run([made_run("fcfs")], *flags)
    assert status == 2
    assert seen in text


def test_missing_rows_are_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message about a folder that does not exist names it."""
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "none" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_a_failure(plot: Plot) -> None:
    """The figures' folder is named with status 1, without a traceback."""
    status, text = plot.run([made_run("fcfs")], out="/proc/none")
    assert status == 1
    assert "cannot write into /proc/none" in text
