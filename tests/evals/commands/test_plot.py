"""`agentkv plot`: which figures it writes, and what it does with rows it cannot use."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.figures.made_runs import made_run, swept, write_runs

Plot = Callable[..., tuple[int, str]]
"""Writes the runs, draws figures of these kinds and returns exit status and what was printed."""


@pytest.fixture
def plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plot:
    def run(
        made: list[RunOutcome],
        *kinds: str,
        flags: Sequence[str] = (),
        out: str = "out",
        rows: str = "rows",
    ) -> tuple[int, str]:
        folder = tmp_path / rows
        if not folder.exists():
            write_runs(folder, made)
        kind_flags = [word for kind in kinds for word in ("--kind", kind)]
        status = agentkv(["plot", str(folder), "--out", str(tmp_path / out), *kind_flags, *flags])
        printed = capsys.readouterr()
        return status, printed.err + printed.out

    return run


def drawn(result: tuple[int, str]) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of the files that were written as PNG, and what was skipped."""
    status, text = result
    assert status == 0, text
    document = json.loads(text.splitlines()[-1])
    files = [Path(row["file"]) for row in document["figures"]]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    return [file.name for file in files], document["skipped"]


FCFS = made_run("fcfs", num_jobs=6)
NO_TOKEN = TurnOutcome(0, 0.0, None, 2.0, 0, 0, 0, 0.0, error="connection lost")
BROKEN = JobOutcome("broken", 0.0, 2.0, "failed", (NO_TOKEN,))


@pytest.mark.parametrize(
    ("runs", "kinds", "files"),
    [
        (
            swept(loads=(2, 12), seeds=(0, 1)),
            (),
            [
                *("jps_sweep_rtx6000.png", "ttft_rtx6000.png", "hit_rate_rtx6000.png"),
                *("policies_rtx6000.png", "jps_sweep_combined.png", "jps_sweep_speedup.png"),
            ],
        ),
        (
            swept(loads=(2, 12), seeds=(0,)) + swept(loads=(5, 25), seeds=(0,), gpu="a100"),
            ("sweep", "combined"),
            ["jps_sweep_rtx6000.png", "jps_sweep_a100.png", "jps_sweep_combined.png"],
        ),
        (
            [made_run(name, repeat=n, gpu=None) for n in (0, 1) for name in ("fcfs", "continuum")],
            (),
            ["policies_server.png"],
        ),
        (
            [made_run("fcfs", None, concurrency=n) for n in (4, 8)],
            ("sweep",),
            ["concurrency_sweep_rtx6000.png"],
        ),
        ([made_run("fcfs", None)], ("policies", "sweep"), ["policies_rtx6000.png"]),
        (
            [RunOutcome("fcfs", FCFS.workload, (*FCFS.jobs, BROKEN), {}, FCFS.metadata)],
            (),
            ["policies_rtx6000.png"],
        ),
    ],
    ids=["sweep", "two GPUs", "repeats", "closed loop", "no load", "failed turn"],
)
def test_runs_give_the_figures_they_are_enough_for(
    plot: Plot, runs: list[RunOutcome], kinds: tuple[str, ...], files: list[str]
) -> None:
    """Sweeps need several loads, each GPU has its own figures, and failed turns are drawn too."""
    assert drawn(plot(runs, *kinds)) == (files, [])


def test_savings_need_their_baseline(plot: Plot) -> None:
    """A policy missing at some loads is drawn where it was run; savings are skipped without fcfs,
    and drawn against another policy if --baseline names it."""
    made = [*swept(("continuum",), (2, 12), seeds=(0,)), made_run("agentkv", 5)]
    files, (skipped,) = drawn(plot(made, "sweep", "policies", "speedup"))
    assert files == ["jps_sweep_rtx6000.png", "policies_rtx6000.png"]
    assert "needs runs of fcfs and of another policy" in skipped["why"]
    made += swept(("agentkv",), (2, 12), seeds=(0,))
    files, _ = drawn(plot(made, "speedup", flags=("--baseline", "continuum"), rows="more"))
    assert files == ["jps_sweep_speedup.png"]


def test_a_figure_changes_only_with_its_rows_and_by_force(plot: Plot, tmp_path: Path) -> None:
    """The same rows give the same bytes, and a figure that exists needs --force."""
    runs = [made_run("fcfs")]
    path = tmp_path / "out" / "policies_rtx6000.png"
    drawn(plot(runs, "policies"))
    before = path.read_bytes()
    status, text = plot(runs)
    assert (status, f"{path.name} exists" in text) == (2, True)
    drawn(plot(runs, "policies", flags=("--force",)))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("kinds", "more", "status", "seen"),
    [
        (("sweep",), {}, 2, "needs runs under more than one load"),
        ((), {"flags": ("--baseline", "contiuum")}, 2, "got 'contiuum', the rows have fcfs"),
        (("policies",), {"out": "/proc/none"}, 1, "cannot write into /proc/none"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    plot: Plot, kinds: tuple[str, ...], more: dict[str, Any], status: int, seen: str
) -> None:
    """Rows that are not enough give status 2, a folder that cannot be written status 1."""
    found, text = plot([made_run("fcfs")], *kinds, **more)
    assert (found, seen in text) == (status, True), text
