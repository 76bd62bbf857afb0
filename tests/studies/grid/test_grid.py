"""The one grid of the studies: what a `study.toml` asks for, its rows, and its tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from studies.grid.__main__ import STUDIES, main
from studies.grid.plan import Study, read_study
from studies.grid.play import read_units
from studies.grid.policies import parse_grid_policy
from studies.grid.report import MARKS, index, over_regimes, pressured, tables

TOML = """
title = "A small one"
policies = ["fcfs", "agentkv"]
seeds = [3, 4]
figures = ["mean_s"]

[[regimes]]
num_jobs = 2
max_turns = 2
jps = 1.0
pool_blocks = { short = 1500, roomy = 9000 }
tools = ["recorded", "longtail"]

[[regimes]]
name = "two clients"
num_jobs = 2
max_turns = 2
concurrency = [1]
pool_blocks = 2000
clients = { alice = 2.0, bob = 1.0 }
seeds = [4]
policies = ["agentkv@untagged"]
"""


def study_of(folder: Path, text: str = TOML) -> Study:
    path = folder / "study.toml"
    path.write_text(text)
    return read_study(path)


def test_a_list_is_an_axis_of_the_grid(tmp_path: Path) -> None:
    """Each combination is a regime whose name says what it is; units come seed by seed."""
    units = list(study_of(tmp_path).units())
    assert [str(unit) for unit in units[:3]] == [
        "swebench, short, recorded, seed 3, fcfs",
        "swebench, short, recorded, seed 3, agentkv",
        "swebench, short, longtail, seed 3, fcfs",
    ]
    assert [unit.seed for unit in units] == [3] * 8 + [4] * 9
    shared = units[-1].regime
    assert (shared.name, shared.concurrency) == ("two clients, 1 at once", 1)
    assert {job.client for job in shared.jobs(4, num_jobs=20).jobs} == {"alice", "bob"}
    assert len({unit.key for unit in units}) == len(units)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "title is missing"),
        ('title = "x"', "regimes is missing"),
        (f"unit = 3\n{TOML}", "unknown keys: unit"),
        (TOML.replace("max_turns", "most_turns"), "most_turns"),
        ("title = ", "Invalid value"),
    ],
)
def test_a_wrong_study_is_named(tmp_path: Path, text: str, message: str) -> None:
    """An error says which file is wrong, and what in it."""
    with pytest.raises(InputError, match=f"study.toml: .*{message}"):
        study_of(tmp_path, text)


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*/study.toml")), ids=lambda p: p.parent.name)
def test_the_studies_here_can_be_played(path: Path) -> None:
    """Each study's file is valid, its policies exist, and its rows are of its regimes."""
    study = read_study(path)
    for unit in {unit.policy: unit for unit in study.units()}.values():
        parse_grid_policy(unit.policy)
    regimes = {unit.regime.name for unit in study.units()}
    assert {row["regime"] for row in read_units(path.parent / "rows.jsonl")} <= regimes


def made_row(regime: str, seed: int, policy: str, mean_s: float, **more: Any) -> dict[str, Any]:
    facts = {"unit": f"{regime}{seed}{policy}", "regime": regime, "seed": seed, "policy": policy}
    return {**facts, "mean_s": mean_s, "recomputed_share": 0.5, "error": None, **more}


def test_ratios_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """A cell is the median over the seeds with its range; regimes together weigh the same."""
    rows = index(
        [
            *(made_row("a", seed, "fcfs", 10.0 * seed) for seed in (1, 2, 3)),
            *(made_row("a", seed, "agentkv", 5.0 * seed + seed**2) for seed in (1, 2, 3)),
            *(made_row("b", seed, "fcfs", 100.0) for seed in (1, 2)),
            *(made_row("b", seed, "agentkv", 150.0) for seed in (1, 2)),
            made_row("idle", 1, "fcfs", 1.0, recomputed_share=0.1),
            made_row("a", 4, "agentkv", 1.0, error="it died"),
        ]
    )
    assert pressured(rows) == ["a", "b"]
    found = over_regimes(rows, ["a", "b"], "agentkv", "fcfs", "mean_s")
    assert found == pytest.approx({1: (0.6 * 1.5) ** 0.5, 2: (0.7 * 1.5) ** 0.5})
    text = tables(study_of(tmp_path), rows)
    assert "**2 regimes short of memory together**" in text
    [line] = [line for line in text.splitlines() if "0.700 (0.600-0.800)" in line]
    assert line.split("|")[1:3] == [" `agentkv` ", "   3 "]


def test_a_study_is_played_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each unit gets a row, the page its tables; played again, only what failed is played."""
    study_of(tmp_path)
    page = tmp_path / "README.md"
    page.write_text(f"Before.\n{MARKS[0]}\n{MARKS[1]}\nAfter.\n")
    options = [str(tmp_path), "--regimes", "short, recorded|two clients", "--seeds", "4"]
    assert main(options) == 0
    rows = read_units(tmp_path / "rows.jsonl")
    assert [row["policy"] for row in rows] == ["fcfs", "agentkv", "agentkv@untagged"]
    assert all(row["completed"] == 2 for row in rows)
    assert rows[-1]["clients"]
    assert "| `agentkv` |" in page.read_text()
    assert page.read_text().startswith("Before.\n")
    assert page.read_text().endswith("After.\n")
    capsys.readouterr()
    (tmp_path / "rows.jsonl").write_text(
        json.dumps(rows[0] | {"error": "it died"}) + "\n" + json.dumps(rows[1]) + "\n"
    )
    assert main(options) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["asked"], document["rows"], document["failed"]) == (2, 3, [])
