"""`python -m studies.tournament`: who plays, what is resumed, and what the page says of rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import InputError
from agentkv.evals.outcomes import JobOutcome
from studies.tournament.__main__ import HERE, PACKED_FILE, pack, read_units
from studies.tournament.__main__ import main as play
from studies.tournament.findings import Findings, Regime
from studies.tournament.page import fill, tables
from studies.tournament.regimes import (
    BOUNDS,
    ENTRANTS,
    GATED,
    ORACLE,
    POOLS,
    RULES,
    STOCK,
    Unit,
    jain_index,
    simulate,
    units,
    with_limit,
)
from studies.units import make_row

SMALL = ["--parts", "main", "--workloads", "bfcl", "--seeds", "0", "--workers", "1"]
TWO = ["--policy", STOCK, "--policy", "VTC"]
Row = dict[str, Any]


def made_rows(
    seconds: Callable[[Unit], float], *, seeds: tuple[int, ...] = (0, 1), parts: Any = ("main",)
) -> list[Row]:
    """The rows of whole regimes of two workloads, in each of which every duration was the same."""
    return [
        make_row("abc", unit, {**figures(seconds(unit), unit), "error": None})
        for unit in units(parts, seeds, ("swebench", "bfcl"))
    ]


def figures(seconds: float, unit: Unit) -> Row:
    """A unit's figures; stock computes a half again, but nothing with a roomy pool."""
    names = ("mean_s", "p99_s", "max_s", "slowdown_p99", "ttft_first_p99_s", "tokens_per_s")
    found: Row = dict.fromkeys((*names, "ttft_continuing_p99_s", "jain"), seconds)
    share = 0.0 if unit.pool == "roomy" else 0.5
    return {**found, "recomputed_share": share, "jobs": 40, "completed": 40, "cpu_s": 1.0}


def by_policy(**seconds: float) -> Callable[[Unit], float]:
    """Each policy takes these seconds wherever memory is short, the others 10 s."""
    return lambda unit: 10.0 if unit.pool == "roomy" else seconds.get(unit.name, 10.0)


def test_every_rule_of_the_examples_plays() -> None:
    """Each file of examples/policies enters, but for stock written out."""
    files = {path.name for path in RULES.glob("*.py")} - {"fcfs.py"}
    assert files == {name.partition(":")[0] for name in ENTRANTS if ".py:" in name}


def test_whole_regimes_come_first() -> None:
    """All policies of a regime are next to each other, and all regimes of a seed come before the
    next seed's."""
    found = list(units(("main",), (0, 1), ("swebench", "bfcl")))
    assert len(found) == len({unit.key for unit in found}) == 2 * 2 * len(POOLS) * len(ENTRANTS)
    assert [unit.seed for unit in found] == sorted(unit.seed for unit in found)
    assert [unit.policy for unit in found[: len(ENTRANTS)]] == list(ENTRANTS)
    assert len({unit.pool for unit in found[: len(ENTRANTS)]}) == 1


def test_a_limit_is_added_to_the_settings_of_a_rule() -> None:
    """A rule of the sweep keeps its own settings, and its name tells the limit."""
    assert with_limit(GATED[0], 30) == 'thunder_agent.py:ThunderAgent{"force_resume_s":30}'
    found = with_limit(GATED[1], 30)
    assert found.endswith('{"force_resume_s":30,"rules":"released"}')


@pytest.mark.parametrize(
    ("durations_s", "index"), [((10.0, 20.0), 1.0), ((10.0, 80.0), 25 / 34), ((), None)]
)
def test_jains_index_compares_slowdowns(
    durations_s: tuple[float, ...], index: float | None
) -> None:
    """Jobs of 10 and 20 s alone are treated alike if both are slowed by the same factor."""
    jobs = [
        JobOutcome(str(n), 0.0, duration_s, "done", (), alone_s=10.0 * (n + 1))
        for n, duration_s in enumerate(durations_s)
    ]
    assert jain_index(jobs) == (None if index is None else pytest.approx(index))


def test_a_small_tournament_is_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two policies play for real; a second run plays only what is missing, also from packed rows,
    and an existing tournament is not overwritten."""
    out = ["--out", str(tmp_path)]
    assert play([*SMALL, *TWO, *out, "--pack"]) == 0
    rows = read_units(tmp_path)
    assert [(row["pool"], row["policy"]) for row in rows] == [
        (pool, policy) for pool in POOLS for policy in (STOCK, "VTC")
    ]
    for row in rows:
        assert row["completed"] == row["jobs"] == 40
        assert 0.0 < row["jain"] <= 1.0
    assert rows[0]["recomputed_share"] < 0.2 < rows[-2]["recomputed_share"]
    assert play([*SMALL, *TWO, *out]) == 2
    assert "has rows: --resume it" in capsys.readouterr().err
    (tmp_path / "rows.jsonl").unlink()
    assert play([*SMALL, *TWO, "--policy", "Justitia{oracle}", "--resume", *out]) == 0
    assert json.loads(capsys.readouterr().out)["units_asked"] == 3
    again = read_units(tmp_path)
    assert [row["unit"] for row in again[:6]] == [row["unit"] for row in rows]
    assert [row["error"] for row in again] == [None] * 9


def test_only_what_all_have_played_counts() -> None:
    """A seed of a regime counts once every policy has a row of it."""
    found = Findings(made_rows(by_policy())[:-1])
    assert [len(seeds) for seeds in found.played.values()] == [2, 2, 2, 2, 2, 1]
    assert tables(Findings(made_rows(by_policy())[:3]))["goal"] == "Not played yet."


def test_pressure_is_what_stock_computes_again() -> None:
    """A regime is pressured if stock computes more than a fifth again, with a tier or without."""
    found = Findings(made_rows(by_policy(), parts=("main", "tier")))
    assert {(regime.pool, regime.has_tier) for regime in found.pressured} == {
        (pool, has_tier) for pool in ("short", "scarce") for has_tier in (False, True)
    }


def test_the_goal_is_stated_by_regime() -> None:
    """The goal counts regimes within 2% of the best mean and compares with the best rule, to which
    the oracle does not belong."""
    seconds = {"agentkv": 8.0, "Mori": 7.0, "VTC": 9.0, ORACLE: 1.0}
    goal = tables(Findings(made_rows(by_policy(**seconds))))["goal"]
    assert "within 2% of it: 2 of 6 regimes" in goal
    assert "Furthest behind: 1.14 times the best, `swebench`, short pool." in goal
    assert "the 4 regimes under pressure without a tier its mean is .80" in goal
    assert "the best other rule, `Mori`, .70: 1.14 of it" in goal


def test_a_rule_is_ahead_only_on_every_seed() -> None:
    """A rule that is ahead by more than 2% on average but not on each seed is not named."""

    def seconds(unit: Unit) -> float:
        ahead = {"Mori": (7.0, 7.5), "VTC": (6.0, 8.5), "Concur": (7.9, 7.95)}
        return ahead[unit.name][unit.seed] if unit.name in ahead else 8.0

    found = Findings(made_rows(seconds))
    [(name, ratio)] = found.ahead_of_ours(Regime("bfcl", "scarce", False)).items()
    assert (name, round(ratio, 3)) == ("Mori", round((7.0 * 7.5) ** 0.5 / 8.0, 3))


def test_the_short_table_groups_workloads_by_what_is_chosen() -> None:
    """One line a policy, with each workload for which it is chosen where memory is short."""

    def seconds(unit: Unit) -> float:
        return 5.0 if (unit.name, unit.workload) == ("VTC", "bfcl") else 8.0 + (unit.name == STOCK)

    [*_, first, second] = tables(Findings(made_rows(seconds)))["when"].splitlines()
    assert first.startswith("| `agentkv` | `swebench` (.89, .89) ")
    assert second.startswith("| `VTC` | `bfcl` (.56, .56) ")


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [({"agentkv": 8.0, "Mori": 7.9}, "agentkv"), ({"agentkv": 8.0, "Mori": 7.0}, "Mori")],
)
def test_the_simplest_policy_near_the_best_is_advised(
    seconds: dict[str, float], chosen: str
) -> None:
    """Stock is advised where memory is enough, ours where it is best or near, else the best."""
    lines = tables(Findings(made_rows(by_policy(**seconds))))["which"].splitlines()[2:]
    memory_and_choice = [[cell.strip() for cell in line.split("|")[2:4]] for line in lines]
    assert memory_and_choice == [["enough", "`fcfs`"], ["short", f"`{chosen}`"]] * 2


def test_the_sweep_compares_limits_over_the_same_jobs() -> None:
    """Mean and p99 over stock's by the limit; the default's come from the main part."""

    def seconds(unit: Unit) -> float:
        return 5.0 if unit.name == 'Mori{"force_resume_s":30}' else 10.0

    found = Findings(made_rows(seconds, parts=("main", "sweep")))
    num_runs, by_limit = found.sweep("mori.py:Mori")
    assert (num_runs, by_limit[30], by_limit[1800]) == (4, (0.5, 0.5), (1.0, 1.0))
    assert ".50, .50" in tables(found)["sweep"]
    assert Findings(made_rows(seconds)).sweep("mori.py:Mori") == (0, {})


def test_runs_without_loss_stand_beside_the_best_rule() -> None:
    """Bounds, ours and the best other rule are compared over the same runs under pressure."""
    seconds = {"agentkv": 8.0, "Mori": 7.0, "agentkv@lossless": 6.3, ORACLE: 5.0}
    rows = made_rows(by_policy(**seconds), seeds=(0,), parts=("main", "bound"))
    table = tables(Findings(rows))["bound"]
    assert "4 runs under pressure" in table
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in table.splitlines()]
    assert ["Mori", ".70", "1.00"] in cells
    assert ["agentkv@lossless", ".63", ".90"] in cells
    assert [ORACLE, ".50", ".71"] in cells
    assert tables(Findings(made_rows(by_policy())))["bound"] == "Not played yet."


def test_a_run_without_loss_computes_nothing_again() -> None:
    """The same jobs are done sooner where what was evicted comes back in no time."""
    stock, ours, _ = (simulate(Unit("bfcl", "scarce", False, 0, name)) for name in BOUNDS)
    lossy = simulate(Unit("bfcl", "scarce", False, 0, STOCK))
    assert stock["recomputed_tokens"] == ours["recomputed_tokens"] == 0
    assert stock["mean_s"] < lossy["mean_s"]


def test_pages_and_figure_are_made_from_rows_alone(tmp_path: Path) -> None:
    """--tables fills each made part of a page and draws, from packed rows, without playing."""
    pack(made_rows(by_policy(agentkv=8.0), parts=("main", "tier")), tmp_path / "rows.jsonl.gz")
    page = tmp_path / "page.md"
    page.write_text("One.\n\n<!-- made: which -->\nold\n<!-- end -->\n\nTwo.\n")
    assert play(["--tables", "--out", str(tmp_path), "--page", str(page)]) == 0
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("One.\n\n<!-- made: which -->\n| jobs")
    assert text.endswith("<!-- end -->\n\nTwo.\n")
    assert (tmp_path / "tournament.png").stat().st_size > 10_000


def test_a_part_that_is_not_made_is_refused() -> None:
    """A page with an unknown part is an error that lists the parts."""
    with pytest.raises(InputError, match="made: luck: allowed are played, which"):
        fill("<!-- made: luck -->\n<!-- end -->", tables(Findings(made_rows(by_policy()))))


def test_the_page_shows_the_committed_rows(tmp_path: Path) -> None:
    """The tables of results.md are those made from the committed rows."""
    shutil.copy(HERE / PACKED_FILE, tmp_path)
    text = (HERE / "results.md").read_text(encoding="utf-8")
    assert fill(text, tables(Findings(read_units(tmp_path)))) == text
