"""The runs to draw: reading them, which of them share a figure, and what is computed of them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.figures import saved
from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.run_table import conditions, grouped, load_runs, table_of
from tests.evals.made_runs import made_run, swept, write_runs

FCFS = made_run("fcfs", turns=8)
SIMULATED = replace(FCFS, metadata={**FCFS.metadata, "is_simulated": True})


@pytest.mark.parametrize(
    ("made", "names"),
    [
        (swept(seeds=(0, 1)), [""]),
        (
            [
                *(made_run("fcfs", blocks=100), made_run("fcfs", blocks=200)),
                *(made_run("fcfs", gpu="h100"), made_run("fcfs", blocks=200, tools="longtail")),
            ],
            ["rtx6000_100", "rtx6000_200", "h100_3000", "rtx6000_longtail_200"],
        ),
        ([FCFS, SIMULATED, made_run("fcfs", turns=4)], ["8", "simulated_8", "4"]),
        ([made_run("fcfs"), made_run("fcfs", tools="longtail")], ["usual", "longtail"]),
        ([made_run("fcfs"), made_run("continuum", tools="recorded", token_scale=1.0)], [""]),
        ([made_run("fcfs"), made_run("fcfs", gpu="some/folder/cpu.json")], ["rtx6000", "cpu"]),
    ],
)
def test_groups_are_named_after_what_sets_them_apart(
    made: list[RunOutcome], names: list[str]
) -> None:
    """Other jobs, machines or pools make another group; policy, load, seed and defaults do not."""
    assert list(grouped(table_of(made))) == names


def test_an_infinite_pool_joins_every_finite_one() -> None:
    """Runs on an infinite pool are part of every group they are compared with."""
    made = [made_run("fcfs@infinite", blocks=None)]
    made += [made_run("fcfs", blocks=blocks) for blocks in (100, 200)]
    policies = [set(group["policy"]) for group in grouped(table_of(made)).values()]
    assert policies == [{"fcfs", "fcfs@infinite"}] * 2


def test_conditions_name_what_a_reader_must_know() -> None:
    """The text under a figure has GPU, workload, model, pool, n, seeds and commit."""
    assert conditions(table_of(swept(("fcfs",), (2, 12)))) == (
        "gpu rtx6000; model llama-3.1-8b; workload reference; blocks 3000; "
        "n = 3 runs a point; 20 jobs a run; seeds 0, 1, 2; commit abc1234"
    )


def test_summaries_of_a_file_are_rows(tmp_path: Path) -> None:
    """A .jsonl of summaries, one a line, is drawn as the runs are; repeats stand for n."""
    path = tmp_path / "rows.jsonl"
    lines = [{"policy": name, "mean_s": 3.0, "repeats": 3, "gpu": "cpu"} for name in "ab"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    table, _ = load_runs([path])
    assert list(table["policy"]) == ["a", "b"]
    assert conditions(table).startswith("gpu cpu; n = 3 runs a point")


def _changed(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change each row of the folder's one run, which has no run.json then."""
    (path,) = folder.rglob("turns.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(row)) + "\n" for row in rows))
    path.with_name("run.json").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: {**row, "sent_s": "soon"}, "cannot be drawn"),
        (lambda row: {k: v for k, v in row.items() if k != "ended_s"}, "line 1 lacks ended_s"),
        (lambda row: {**row, "job_status": "cut"}, "fcfs: none of its 20 jobs is done"),
    ],
)
def test_rows_that_cannot_be_drawn_are_an_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    """Rows of another shape, or without a finished job, give a message, never a traceback."""
    _changed(write_runs(tmp_path, [made_run("fcfs")]), change)
    with pytest.raises(InputError, match=message):
        load_runs([tmp_path])


def test_savings_compare_runs_of_the_same_jobs() -> None:
    """(fcfs - x) / fcfs is taken seed by seed; a seed that fcfs lacks is held against its mean."""
    made = [made_run("fcfs"), made_run("continuum"), made_run("continuum", seed=7)]
    rows = table_of(made)
    base, same, other = rows["mean_s"]
    found = list(saved(rows, "fcfs")["value"])
    assert found == pytest.approx([100 * (1 - same / base), 100 * (1 - other / base)])
    with pytest.raises(InputError, match="needs runs of agentkv and of another policy"):
        saved(rows, "agentkv")
