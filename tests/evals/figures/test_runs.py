"""The runs to draw: reading them, and which of them share a figure."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.figures.runs import Group, grouped, load_runs
from agentkv.evals.outcomes import RunOutcome
from tests.evals.figures.made_runs import made_run, swept, write_runs


def rewritten(folder: Path, change: Any) -> Path:
    """The folder with each row of its one run changed."""
    (path,) = folder.rglob("turns.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))
    return folder


def groups_of(folder: Path, made: list[RunOutcome]) -> list[Group]:
    return grouped(load_runs([write_runs(folder, made)])[0])


FCFS = made_run("fcfs", turns=8)
SIMULATED = replace(FCFS, metadata={**FCFS.metadata, "is_simulated": True})


@pytest.mark.parametrize(
    ("made", "slugs"),
    [
        (swept(seeds=(0, 1)), ["rtx6000"]),
        (
            [
                *(made_run("fcfs", blocks=100), made_run("fcfs", blocks=200)),
                *(made_run("fcfs", gpu="h100"), made_run("fcfs", blocks=200, tools="longtail")),
            ],
            ["rtx6000_100", "rtx6000_200", "h100", "rtx6000_longtail_200"],
        ),
        (
            [made_run("fcfs@lossless", blocks=blocks) for blocks in (100, 200)],
            ["rtx6000_100", "rtx6000_200"],
        ),
        (
            [FCFS, SIMULATED, made_run("fcfs", turns=4)],
            ["rtx6000_measured_turns-8", "rtx6000_simulated_turns-8", "rtx6000_measured_turns-4"],
        ),
        *(
            (
                [made_run("fcfs"), made_run("fcfs", **{name: value})],
                ["rtx6000", f"rtx6000_{name.replace('_', '-')}-{value}"],
            )
            for name, value in {
                "arrivals": "burst",
                "mode": "live",
                "block_size": 32,
                "gpu_memory_utilization": 0.5,
                "max_num_batched_tokens": 512,
                "max_model_len": 4096,
            }.items()
        ),
        (
            [made_run("fcfs"), made_run("continuum", tools="recorded", token_scale=1.0)],
            ["rtx6000"],
        ),
        ([made_run("fcfs", gpu="some/folder/cpu.json")], ["cpu"]),
    ],
)
def test_groups_are_named_after_what_sets_them_apart(
    tmp_path: Path, made: list[RunOutcome], slugs: list[str]
) -> None:
    """Other jobs, machines or pools make another group; policy, load, seed and defaults do not."""
    assert [group.slug for group in groups_of(tmp_path, made)] == slugs


def test_an_infinite_pool_joins_every_finite_one(tmp_path: Path) -> None:
    """Runs on an infinite pool are part of every group they are compared with."""
    made = [made_run("fcfs", blocks=100), made_run("fcfs", blocks=200)]
    groups = groups_of(tmp_path, [made_run("fcfs@infinite", blocks=None), *made])
    policies = [{run.policy for run in group.runs} for group in groups]
    assert policies == [{"fcfs", "fcfs@infinite"}] * 2


def test_blocks_are_found_among_the_servers_flags(tmp_path: Path) -> None:
    """The pool's size is read from the flags that compare gave to a stock server."""
    run = made_run("fcfs", blocks=None)
    config = {"server_flags": ["--block-size", "32", "--num-gpu-blocks-override", "96"]}
    made = [replace(run, metadata={**run.metadata, "config": config})]
    (read,), _ = load_runs([write_runs(tmp_path, made)])
    assert (read.setting.blocks, read.pool) == ("96", "96")


def test_an_interrupted_run_counts_with_what_it_has(tmp_path: Path) -> None:
    """The rows of a run without run.json carry all that a figure needs."""
    write_runs(tmp_path, [made_run("fcfs")])
    (path,) = tmp_path.rglob("turns.jsonl")
    (path.parent / "run.json").unlink()
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:83]))
    (run,), _ = load_runs([tmp_path])
    assert (run.summary["completed"], run.summary["cut"]) == (10, 1)
    assert (run.load, run.setting.gpu) == (2, "rtx6000")


def test_a_run_without_a_finished_job_is_left_out_and_named(tmp_path: Path) -> None:
    """A run whose jobs were all cut is named, and the others are drawn."""
    rewritten(
        write_runs(tmp_path / "a", [made_run("continuum")]), lambda r: {**r, "job_status": "cut"}
    )
    write_runs(tmp_path / "b", [made_run("fcfs")])
    runs, (line,) = load_runs([tmp_path])
    assert [run.policy for run in runs] == ["fcfs"]
    assert "continuum: none of its 20 jobs is done" in line


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {**row, "sent_s": "soon"}, "cannot be drawn"),
        (lambda row: {**row, "ended_s": float("nan")}, "not a finite number"),
        (lambda row: {**row, "jps": "many"}, "cannot be drawn"),
        (lambda row: {k: v for k, v in row.items() if k != "ended_s"}, "line 1 lacks ended_s"),
        (lambda row: {k: v for k, v in row.items() if k != "job_status"}, "job_status"),
        (lambda row: [row], "line 1"),
    ],
)
def test_misshapen_rows_are_an_error_with_the_file(
    tmp_path: Path, change: Any, message: str
) -> None:
    """Rows of another shape give a message with the file, never a traceback."""
    rewritten(write_runs(tmp_path, [made_run("fcfs")]), change)
    (run_file,) = tmp_path.rglob("run.json")
    run_file.unlink()
    with pytest.raises(InputError, match=message) as caught:
        load_runs([tmp_path])
    assert str(tmp_path) in str(caught.value)


def test_places_without_a_run_are_an_error(tmp_path: Path) -> None:
    """A file of another kind, a folder without one and rows without a job are named."""
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n")
    with pytest.raises(InputError, match=r"rows\.csv: not a run"):
        load_runs([path])
    with pytest.raises(InputError, match=r"turns\.jsonl"):
        load_runs([tmp_path])
    (tmp_path / "turns.jsonl").write_text("")
    with pytest.raises(InputError, match="none of its 0 jobs is done"):
        load_runs([tmp_path])
