"""A study's document, tables and figures, from rows."""

from __future__ import annotations

from pathlib import Path

from studies.policy_grid.figure import draw_study
from studies.policy_grid.tables import tables

from studies.policy_grid.findings import findings
from tests.studies.policy_grid.made_rows import row

ROWS = [
    row("fcfs", 10.0),
    row("fcfs", 20.0, seed=1),
    row("agentkv", 5.0),
    row("agentkv", 5.0, seed=1),
    row("continuum:released", 0.0, error="RunError: x"),
]


def test_the_document_has_ratios_and_their_spread() -> None:
    """In each regime, of each policy."""
    [regime] = findings(ROWS)["regimes"]
    ratio = regime["policies"]["agentkv"]["ratios"]["mean_s"]
    assert (ratio["least"], ratio["most"], ratio["n"]) == (0.25, 0.5, 2)
    assert list(regime["policies"]) == ["fcfs", "agentkv"]


def test_the_document_names_units_that_failed() -> None:
    """With their reason."""
    [failure] = findings(ROWS)["failed_units"]
    assert (failure["policy"], failure["error"]) == ("continuum:released", "RunError: x")


def test_no_rows_are_no_findings() -> None:
    """An empty study can still be told of."""
    assert "# Study" in tables(findings([]))


def test_tables_show_spread_targets_and_failures() -> None:
    """As Markdown."""
    text = tables(findings(ROWS))
    assert "0.354 (0.250..0.500)" in text
    assert "1 of 5 units failed" in text
    assert "- [x] recorded tools: mean JCT over fcfs (at most 0.4): **0.354** (1 regime;" in text
    assert "### 3,000 blocks, 1x (0.1/s): pressured (50.0% recomputed)" in text


def test_rows_of_two_versions_of_the_code_are_told() -> None:
    """As they may not be compared."""
    other = {**ROWS[2], "code": "fff"}
    assert "2 versions of the code" in tables(findings([*ROWS[:2], other]))


def test_means_over_different_regimes_are_told() -> None:
    """A policy whose units failed in some is not compared unawares."""
    rows = [*ROWS, row("fcfs", 1.0, load="2x")]
    told = "Means over different numbers of regimes are not to be compared."
    assert told in tables(findings(rows))
    assert told not in tables(findings(ROWS))


def test_there_is_a_figure_for_each_kind_of_tools(tmp_path: Path) -> None:
    """Also with policies that no figure has seen before."""
    rows = [*ROWS, row('agentkv{"x":1}', 3.0), row('agentkv{"x":2}', 2.0)]
    rows += [row("fcfs", 1.0, tools="a b.jsonl"), row("agentkv", 2.0, tools="a b.jsonl")]
    paths = draw_study(findings(rows), tmp_path)
    assert [path.name for path in paths] == ["ratios-recorded.png", "ratios-a-b.jsonl.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
