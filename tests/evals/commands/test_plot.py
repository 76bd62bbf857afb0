"""`agentkv plot`: which figures it writes, and what it does with rows it cannot use."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.made_runs import made_run, swept, write_runs

Plot = Callable[..., tuple[int, str]]
"""Writes the runs, draws figures of these kinds and returns exit status and what was printed."""


@pytest.fixture
def plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plot:
    def run(
        made: list[RunOutcome], *kinds: str, flags: Sequence[str] = (), out: str = "out"
    ) -> tuple[int, str]:
        folder = tmp_path / "rows"
        if not folder.exists():
            write_runs(folder, made)
        kind_flags = [word for kind in kinds for word in ("--kind", kind)]
        status = agentkv(["plot", str(folder), "--out", str(tmp_path / out), *kind_flags, *flags])
        printed = capsys.readouterr()
        return status, printed.err + printed.out

    return run


FCFS = made_run("fcfs", num_jobs=6)
NO_TOKEN = TurnOutcome(0, 0.0, None, 2.0, 0, 0, 0, 0.0, error="connection lost")
BROKEN = JobOutcome("broken", 0.0, 2.0, "failed", (NO_TOKEN,))
ALONE = ["jobs", "policies", "within"]


@pytest.mark.parametrize(
    ("runs", "kinds", "files"),
    [
        (swept(loads=(2, 12), seeds=(0, 1)), (), [*ALONE, "saved", "sweep"]),
        (
            swept(loads=(2, 12), seeds=(0,)) + swept(loads=(5, 25), seeds=(0,), gpu="a100"),
            ("sweep",),
            ["sweep_a100", "sweep_rtx6000"],
        ),
        ([made_run("fcfs", None, concurrency=n) for n in (4, 8)], ("sweep",), ["sweep"]),
        ([made_run("fcfs", None)], ("policies", "sweep"), ["policies"]),
        ([RunOutcome("fcfs", FCFS.workload, (*FCFS.jobs, BROKEN), {}, FCFS.metadata)], (), ALONE),
    ],
    ids=["sweep", "two GPUs", "closed loop", "no load", "failed turn"],
)
def test_runs_give_the_figures_they_are_enough_for(
    plot: Plot, tmp_path: Path, runs: list[RunOutcome], kinds: tuple[str, ...], files: list[str]
) -> None:
    """Sweeps need several loads, each GPU has its own figures, and failed turns are drawn too."""
    status, text = plot(runs, *kinds)
    assert status == 0, text
    drawn = sorted((tmp_path / "out").iterdir())
    assert [path.stem for path in drawn] == sorted(files)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_a_figure_changes_only_with_its_rows_and_by_force(plot: Plot, tmp_path: Path) -> None:
    """The same rows give the same bytes, and a figure that exists needs --force."""
    runs, path = [made_run("fcfs")], tmp_path / "out" / "policies.svg"
    flags = ("--format", "svg")
    assert plot(runs, "policies", flags=flags)[0] == 0
    before = path.read_bytes()
    status, text = plot(runs, flags=flags)
    assert (status, f"{path.name} exists" in text) == (2, True)
    assert plot(runs, "policies", flags=(*flags, "--force"))[0] == 0
    assert path.read_bytes() == before


def test_json_names_what_was_drawn_and_what_not(
    plot: Plot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --json nothing is on standard output."""
    assert plot([made_run("agentkv", 5)], "policies")[0] == 0
    flags = ["plot", str(tmp_path / "rows"), "--out", str(tmp_path / "other"), "--kind", "saved"]
    assert agentkv([*flags, "--kind", "within"]) == 0
    assert capsys.readouterr().out == ""
    assert agentkv([*flags, "--kind", "within", "--force", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["figures"] == [str(tmp_path / "other" / "within.png")]
    assert found["skipped"] == {
        str(tmp_path / "other" / "saved.png"): "needs runs under more than one load (--jps)"
    }


@pytest.mark.parametrize(
    ("kinds", "flags", "out", "status", "seen"),
    [
        (("sweep",), (), "out", 2, "needs runs under more than one load"),
        ((), ("--baseline", "contiuum"), "out", 2, "got 'contiuum', the rows have fcfs"),
        (("policies",), (), "/proc/none", 1, "cannot write into /proc/none"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    plot: Plot, kinds: tuple[str, ...], flags: tuple[str, ...], out: str, status: int, seen: str
) -> None:
    """Rows that are not enough give status 2, a folder that cannot be written status 1."""
    found, text = plot([made_run("fcfs")], *kinds, flags=flags, out=out)
    assert (found, seen in text) == (status, True), text
