"""Means, spreads and savings, before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.evals.figures.against_load import (
    Point,
    against_load,
    point,
    saved_against_load,
    summary_value,
)
from agentkv.evals.figures.runs import Run, conditions, load_runs
from agentkv.evals.figures.style import in_order, look
from tests.evals.figures.made_runs import made_run, swept, write_runs

MEAN = summary_value("mean_s")


def runs_of(folder: Path, *policies: str, loads: tuple[float, ...] = (2, 12)) -> list[Run]:
    return load_runs([write_runs(folder, swept(policies, loads))])[0]


def test_a_point_is_the_mean_with_its_least_and_largest_run() -> None:
    """No assumption on how runs are distributed."""
    assert point(2.0, [1.0, 2.0, 6.0]) == Point(2.0, 3.0, 1.0, 6.0, 3)


def test_a_line_has_a_point_for_each_load(tmp_path: Path) -> None:
    """From all of its seeds."""
    lines = against_load(runs_of(tmp_path, "fcfs", "continuum"), MEAN)
    assert {name: [(p.x, p.num_runs) for p in line] for name, line in lines.items()} == {
        "fcfs": [(2, 3), (12, 3)],
        "continuum": [(2, 3), (12, 3)],
    }


def test_a_value_that_no_run_has_gives_no_line(tmp_path: Path) -> None:
    """Not a line of zeros."""
    assert against_load(runs_of(tmp_path, "fcfs"), summary_value("preemptions")) == {}


def test_savings_compare_runs_of_the_same_jobs(tmp_path: Path) -> None:
    """(fcfs - x) / fcfs seed by seed: the seeds' own differences cancel."""
    runs = runs_of(tmp_path, "fcfs", "continuum")
    line = saved_against_load(runs, MEAN, "fcfs")["continuum"]
    by_pair = {(run.policy, run.pair): run.summary["mean_s"] for run in runs}
    expected = [
        100 * (by_pair["fcfs", pair] - mean_s) / by_pair["fcfs", pair]
        for (policy, pair), mean_s in by_pair.items()
        if policy == "continuum" and pair[0] == 12
    ]
    assert line[1] == point(12, expected)
    assert "fcfs" not in saved_against_load(runs, MEAN, "fcfs")


def test_without_the_same_jobs_the_mean_of_the_baseline_stands_in(tmp_path: Path) -> None:
    """Seed 7 was never run under fcfs."""
    runs, _ = load_runs([write_runs(tmp_path, [made_run("fcfs"), made_run("continuum", seed=7)])])
    base, other = (run.summary["mean_s"] for run in runs)
    (saved,) = saved_against_load(runs, MEAN, "fcfs")["continuum"]
    assert saved.mean == pytest.approx(100 * (base - other) / base)


def test_without_a_baseline_there_are_no_savings(tmp_path: Path) -> None:
    """And no error either."""
    assert saved_against_load(runs_of(tmp_path, "continuum"), MEAN, "fcfs") == {}


def test_conditions_name_what_a_reader_must_know(tmp_path: Path) -> None:
    """GPU, workload, model, pool, n, seeds, commit."""
    text = " ".join(conditions(runs_of(tmp_path, "fcfs"), 8.0, "a note").split())
    assert text == (
        "on rtx6000; workload reference; model llama-3.1-8b; pool of 3,000 blocks; "
        "n = 3 runs for each point, 20 jobs in each run; seeds 0, 1, 2; commit abc1234; a note"
    )


def test_every_policy_keeps_its_look() -> None:
    """The known ones differ from each other in colour or marker; unknown ones get one too."""
    known = ["fcfs", "continuum", "continuum:released", "context_serve", "agentkv", "fcfs+offload"]
    assert len({(look(name).color, look(name).marker) for name in known}) == len(known)
    assert look("continuum+offload").color == look("continuum").color
    assert look("something new") == look("something new")


def test_fcfs_leads_every_legend() -> None:
    """Then the policies in one order, then those not known by name."""
    assert in_order(["zeta", "context_serve", "fcfs", "alpha", "continuum", "fcfs"]) == [
        "fcfs",
        "continuum",
        "context_serve",
        "alpha",
        "zeta",
    ]
