"""Rows give ratios, pressured regimes, tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies.policy_grid.findings import STOCK, Findings
from studies.policy_grid.report import draw, tables

from .made_rows import row

ROWS = [
    row("fcfs", 10.0, seed=0),
    row("fcfs", 20.0, seed=1),
    row("agentkv", 5.0, seed=0),
    row("agentkv", 5.0, seed=1),
    row("continuum:released", 0.0, error="RunError: x"),
]


def report(rows: list[dict[str, Any]]) -> str:
    found = Findings(rows)
    return tables(found, found.document())


def test_ratios_are_between_the_same_jobs() -> None:
    """A ratio is taken seed by seed; a seed whose counterpart failed does not count."""
    rows = [row("fcfs", 10.0, seed=0), row("fcfs", 40.0, seed=1), row("agentkv", 5.0, seed=0)]
    rows += [row("agentkv", 80.0, seed=1), row("agentkv", 7.0, seed=2)]
    ratios = Findings(rows).ratios()["mean_s"].xs("agentkv", level="policy")
    assert ratios.dropna().tolist() == [0.5, 2.0]
    over_seeds = Findings(rows).over_seeds()["mean_s"].xs("agentkv", level="policy")
    assert over_seeds.tolist() == [pytest.approx(1.0)]


@pytest.mark.parametrize(("share", "is_pressured"), [(0.2, False), (0.201, True)])
def test_pressure_is_what_stock_recomputes(share: float, is_pressured: bool) -> None:
    """A regime is pressured if stock recomputes more than a fifth of its tokens there."""
    rows = [row("fcfs", 1.0, recomputed_share=share)]
    rows += [row("agentkv", 1.0, recomputed_share=1.0 - share)]
    assert bool(Findings(rows).pressured) is is_pressured
    assert not Findings([row("agentkv", 1.0)]).pressured


def test_regimes_are_ordered() -> None:
    """Pools and loads ascend, tools stay in the order of their rows."""
    places = [
        (tools, pool, load)
        for tools in ("recorded", "longtail")
        for pool in (3000, 9000)
        for load in ("light", "1x", "2x")
    ]
    shuffled = [*places[:1], *reversed(places[1:])]
    rows = [row("fcfs", 1.0, tools=t, pool_blocks=p, load=load) for t, p, load in shuffled]
    assert Findings(rows).regimes == places


def test_regimes_weigh_the_same() -> None:
    """Means over regimes are geometric, over those that have the policy; a zero makes a zero."""
    rows = [row("fcfs", 1.0, load=load) for load in ("light", "1x", "2x")]
    rows += [row("agentkv", 4.0, load="1x"), row("agentkv", 1.0, load="2x")]
    mean = Findings(rows).geometric_means(STOCK).loc[("recorded", "agentkv")]
    assert (mean["n"], mean["mean_s"]) == (2, pytest.approx(2.0))
    rows += [row("agentkv", 0.0, load="light")]
    assert Findings(rows).geometric_means(STOCK).loc[("recorded", "agentkv")]["mean_s"] == 0.0


def test_tables_show_spread_and_failures() -> None:
    """The tables have each ratio with its spread, and the number of failures."""
    text = report(ROWS)
    assert "0.354 (0.250..0.500)" in text
    assert "1 of 5 units failed" in text
    assert "3,000 blocks, 1x (0.1/s): pressured (50.0% recomputed)" in text
    [failure] = Findings(ROWS).document()["failed_units"]
    assert (failure["policy"], failure["error"]) == ("continuum:released", "RunError: x")


def test_tables_warn_of_unequal_rows() -> None:
    """The tables warn of means over different regimes, and name each commit of their rows."""
    assert "commit abc, fff" in report([*ROWS[:2], {**ROWS[2], "commit": "fff"}])
    warning = "Means over different numbers of regimes are not to be compared."
    assert warning in report([*ROWS, row("fcfs", 1.0, load="2x")])
    assert warning not in report(ROWS)


def test_a_study_whose_units_all_failed_has_tables() -> None:
    """Tables can be made if every unit failed."""
    assert "1 of 1 units failed" in report(ROWS[-1:])


def test_there_is_a_figure_for_each_kind_of_tools(tmp_path: Path) -> None:
    """Each kind of tools gets a figure, also with policies that no figure has a look for."""
    rows = [*ROWS, row('agentkv{"x":1}', 3.0), row('agentkv{"x":2}', 2.0)]
    rows += [row("fcfs", 1.0, tools="a b.jsonl"), row("agentkv", 2.0, tools="a b.jsonl")]
    found = Findings(rows)
    paths = draw(found, found.document(), tmp_path)
    assert [path.name for path in paths] == ["ratios-recorded.png", "ratios-a-b.jsonl.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
