"""Means, spreads and savings against the load, before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentkv.evals.figures.drawing import (
    DURATIONS,
    Quantity,
    against_load,
    compared,
    in_order,
    look,
)
from agentkv.evals.figures.runs import Run, conditions, load_runs
from tests.evals.figures.made_runs import made_run, swept, write_runs

MEAN = DURATIONS[0]


def runs_of(folder: Path, *policies: str) -> list[Run]:
    return load_runs([write_runs(folder, swept(policies, (2, 12)))])[0]


def test_points_have_the_spread_over_seeds(tmp_path: Path) -> None:
    """Each point spans all runs of its policy and load; a number not measured gives none."""
    runs = runs_of(tmp_path, "fcfs", "continuum")
    lines = against_load(runs, MEAN)
    assert set(lines.index) == {(name, load) for name in ("fcfs", "continuum") for load in (2, 12)}
    values_s = [run.summary["mean_s"] for run in runs if (run.policy, run.load) == ("fcfs", 12)]
    expected = pytest.approx([sum(values_s) / 3, min(values_s), max(values_s)])
    assert list(lines.loc["fcfs", 12]) == expected
    assert against_load(runs, Quantity("preemptions", "Preemptions", "requests")).empty


def test_savings_compare_runs_of_the_same_jobs(tmp_path: Path) -> None:
    """(fcfs - x) / fcfs is taken seed by seed; without a baseline there are no savings."""
    runs = runs_of(tmp_path, "fcfs", "continuum")
    means_s = {(run.policy, run.pair): run.summary["mean_s"] for run in runs if run.load == 12}
    saved = [
        100 * (1 - mean_s / means_s["fcfs", pair])
        for (policy, pair), mean_s in means_s.items()
        if policy == "continuum"
    ]
    lines = against_load(runs, MEAN, "fcfs")
    expected = pytest.approx([sum(saved) / 3, min(saved), max(saved)])
    assert list(lines.loc["continuum", 12]) == expected
    assert "fcfs" not in lines.index
    assert against_load(runs, MEAN, "agentkv").empty


def test_without_the_same_jobs_the_mean_of_the_baseline_stands_in(tmp_path: Path) -> None:
    """A seed that was never run under fcfs is compared with the mean of the others."""
    runs, _ = load_runs([write_runs(tmp_path, [made_run("fcfs"), made_run("continuum", seed=7)])])
    base, other = (run.summary["mean_s"] for run in runs)
    (saved,) = against_load(runs, MEAN, "fcfs")["mean"]
    assert saved == pytest.approx(100 * (base - other) / base)


def test_a_bar_says_how_far_it_is_from_the_baseline() -> None:
    """Durations are less or more by percent, shares by points."""
    assert compared(42.0, 50.0, is_share=False) == "16% less"
    assert compared(52.0, 25.0, is_share=True) == "27 points more"


def test_conditions_name_what_a_reader_must_know(tmp_path: Path) -> None:
    """The text under a figure has GPU, workload, model, pool, n, seeds and commit."""
    text = " ".join(conditions(runs_of(tmp_path, "fcfs"), 8.0, "a note").split())
    assert text == (
        "on rtx6000; workload reference; model llama-3.1-8b; pool of 3,000 blocks; "
        "n = 3 runs for each point, 20 jobs in each run; seeds 0, 1, 2; commit abc1234; a note"
    )


def test_every_policy_keeps_its_look_and_place() -> None:
    """Known policies differ in colour or marker and lead the legend, the others follow by name."""
    known = ["fcfs", "continuum", "continuum:released", "context_serve", "agentkv", "fcfs+offload"]
    assert len({(look(name).color, look(name).marker) for name in known}) == len(known)
    assert look("continuum+offload").color == look("continuum").color
    assert look("something new") == look("something new")
    assert in_order(["zeta", *reversed(known), "alpha", "fcfs"]) == [*known, "alpha", "zeta"]
