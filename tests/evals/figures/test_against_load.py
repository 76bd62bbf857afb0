"""Means, spreads and savings against the load, before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.evals.figures.against_load import (
    DURATIONS,
    Quantity,
    against_load,
    saved_against_load,
)
from agentkv.evals.figures.runs import Run, conditions, load_runs
from agentkv.evals.figures.style import in_order, look
from agentkv.evals.summary import Spread
from tests.evals.figures.made_runs import made_run, swept, write_runs

MEAN = DURATIONS[0]


def runs_of(folder: Path, *policies: str, loads: tuple[float, ...] = (2, 12)) -> list[Run]:
    return load_runs([write_runs(folder, swept(policies, loads))])[0]


def test_a_line_has_the_spread_over_seeds_at_each_load(tmp_path: Path) -> None:
    """Each policy has one line, and each point is over all runs under its load."""
    runs = runs_of(tmp_path, "fcfs", "continuum")
    lines = against_load(runs, MEAN)
    assert list(lines) == ["fcfs", "continuum"]
    values_s = [run.summary["mean_s"] for run in runs if (run.policy, run.load) == ("fcfs", 12)]
    assert list(lines["fcfs"]) == [2, 12]
    assert lines["fcfs"][12] == Spread.of(values_s)


def test_a_value_that_no_run_has_gives_no_line(tmp_path: Path) -> None:
    """A number that was not measured is left out, not drawn as zero."""
    nothing = Quantity("preemptions", "Preemptions", "requests")
    assert against_load(runs_of(tmp_path, "fcfs"), nothing) == {}


def test_savings_compare_runs_of_the_same_jobs(tmp_path: Path) -> None:
    """(fcfs - x) / fcfs is taken seed by seed, so the seeds' own differences cancel."""
    runs = runs_of(tmp_path, "fcfs", "continuum")
    lines = saved_against_load(runs, MEAN, "fcfs")
    by_pair = {(run.policy, run.pair): run.summary["mean_s"] for run in runs}
    expected = [
        100 * (by_pair["fcfs", pair] - mean_s) / by_pair["fcfs", pair]
        for (policy, pair), mean_s in by_pair.items()
        if policy == "continuum" and pair[0] == 12
    ]
    assert list(lines) == ["continuum"]
    assert lines["continuum"][12] == Spread.of(expected)


def test_without_the_same_jobs_the_mean_of_the_baseline_stands_in(tmp_path: Path) -> None:
    """A seed that was never run under fcfs is compared with the mean of the others."""
    runs, _ = load_runs([write_runs(tmp_path, [made_run("fcfs"), made_run("continuum", seed=7)])])
    base, other = (run.summary["mean_s"] for run in runs)
    (saved,) = saved_against_load(runs, MEAN, "fcfs")["continuum"].values()
    assert saved.mean == pytest.approx(100 * (base - other) / base)


def test_without_a_baseline_there_are_no_savings(tmp_path: Path) -> None:
    """Runs without any run of the baseline give no line and no error."""
    assert saved_against_load(runs_of(tmp_path, "continuum"), MEAN, "fcfs") == {}


def test_conditions_name_what_a_reader_must_know(tmp_path: Path) -> None:
    """The text under a figure has GPU, workload, model, pool, n, seeds and commit."""
    text = " ".join(conditions(runs_of(tmp_path, "fcfs"), 8.0, "a note").split())
    assert text == (
        "on rtx6000; workload reference; model llama-3.1-8b; pool of 3,000 blocks; "
        "n = 3 runs for each point, 20 jobs in each run; seeds 0, 1, 2; commit abc1234; a note"
    )


def test_every_policy_keeps_its_look() -> None:
    """Known policies differ in colour or marker; an unknown one gets the same look each time."""
    known = ["fcfs", "continuum", "continuum:released", "context_serve", "agentkv", "fcfs+offload"]
    assert len({(look(name).color, look(name).marker) for name in known}) == len(known)
    assert look("continuum+offload").color == look("continuum").color
    assert look("something new") == look("something new")


def test_fcfs_leads_every_legend() -> None:
    """Legends have fcfs first, then the known policies in one order, then the others by name."""
    names = ["zeta", "context_serve", "fcfs", "alpha", "continuum", "fcfs"]
    assert in_order(names) == ["fcfs", "continuum", "context_serve", "alpha", "zeta"]
