"""`python -m studies.fleet`: what is played, and what the page says of rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.simulator.routers import ROUTERS
from studies.fleet.__main__ import main
from studies.fleet.page import Findings, tables
from studies.fleet.regimes import JOBS, LOADS, POLICIES, STICKY_SPILL, Unit, units
from studies.units import make_row

SMALL = ["--sizes", "1", "--seeds", "0", "--parts", "sizes", "--workers", "1"]
FIGURES = {"p99_s": 9.0, "hit_rate": 0.5, "error": None}


def rows(seconds: Callable[[Unit], float], seeds: tuple[int, ...] = (0, 1)) -> list[dict[str, Any]]:
    return [
        make_row("abc", unit, {**FIGURES, "mean_s": seconds(unit)})
        for unit in units(("sizes", "failure"), (1, 2), seeds)
    ]


def test_all_routers_play_the_same_fleets() -> None:
    """Each fleet of several engines is played by all routers, one engine by one, in seed order."""
    found = list(units(("sizes", "failure"), (1, 2), (0, 1)))
    assert len(found) == 2 * len(LOADS) * len(POLICIES) * (1 + 2 * len(ROUTERS))
    assert len({unit.key for unit in found}) == len(found)
    assert [unit.seed for unit in found] == sorted(unit.seed for unit in found)


def test_the_page_names_where_sticky_spill_is_beaten() -> None:
    """By more than 1%, a mean over the seeds that all routers have played."""
    assert tables(Findings(rows(lambda unit: 10.0)))["beaten"] == "Nowhere."

    def seconds(unit: Unit) -> float:
        is_slow = unit.router == STICKY_SPILL and unit.has_failure and unit.load == LOADS[0]
        return 12.0 if is_slow and unit.policy == "fcfs" else 10.0

    made = tables(Findings(rows(seconds)))
    assert made["beaten"].splitlines() == [
        f"- 4 engines at 0.3 under fcfs, one fails: the mean is 20.0% above that of `{router}`."
        for router in ("sticky", "least-loaded")
    ]
    assert "12.0 / 9 / 50%" in made["failure"]
    assert "12.0 / 9 / 50%" not in made["sizes"]


def test_a_seed_that_a_router_lacks_does_not_count() -> None:
    """A fleet counts with the seeds that all of its routers have played."""
    played = rows(lambda unit: 10.0 + 10.0 * unit.seed)
    lacking = [row for row in played if (row["router"], row["seed"]) != ("sticky", 1)]
    place = (2, 0.3, False, "fcfs")
    assert Findings(played).figure(place, "round-robin", "mean_s") == 15.0
    assert Findings(lacking).figure(place, "round-robin", "mean_s") == 10.0


@pytest.mark.slow
def test_rows_are_written_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One engine is simulated under both policies, and not again with --resume."""
    out = ["--out", str(tmp_path)]
    assert main([*SMALL, *out]) == 0
    first = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["completed"] for row in first] == [JOBS] * 4
    assert main([*SMALL, *out]) == 2
    assert "--resume it" in capsys.readouterr().err
    assert main([*SMALL, *out, "--resume"]) == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4
