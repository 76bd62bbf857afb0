"""The overhead benchmark judges what it measures, and says so by its exit status."""

from __future__ import annotations

import json

import pytest

from studies.cost import __main__ as overhead
from studies.cost import client
from studies.cost.rows import difference_row, ratio_row


def test_a_difference_is_that_of_the_medians_with_the_pairs_quartiles() -> None:
    """A difference is that of the medians, so one slow sample does not move it."""
    row = difference_row("r", [1.0, 1.0, 9.0], [1.002, 1.004, 1.003], target_ms=3.0)
    assert row.value == pytest.approx(3.0)
    assert row.low < 0 < row.high
    assert row.n == 3


def test_a_ratio_is_the_median_over_rounds() -> None:
    """A ratio is the median over rounds, so a slow round counts once."""
    rounds = [([1.0, 1.0], [1.1, 1.1]), ([5.0, 5.0], [5.5, 5.5]), ([1.0, 1.0], [9.0, 9.0])]
    assert ratio_row("r", rounds, target=1.15).value == pytest.approx(1.1)


@pytest.mark.parametrize(("ours_s", "has_passed"), [(1.05, True), (1.2, False)])
def test_a_row_passes_up_to_its_target(ours_s: float, has_passed: bool) -> None:
    """A row passes up to its target, and always without one."""
    rounds = [([1.0, 1.0], [ours_s, ours_s])] * 2
    assert ratio_row("r", rounds, target=1.15).has_passed is has_passed
    assert ratio_row("r", rounds, target=None).has_passed


def test_the_document_says_what_was_measured_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output is one document with n, spread, versions and seed."""
    status = overhead.main(["--only", "middleware", "--json", "--seed", "3"])
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert document["seed"] == 3
    assert {"agentkv", "python", "starlette"} <= document["versions"].keys()
    assert row["n"] == client.NUM_BODIES
    assert row["low"] <= row["value"] <= row["high"]
    assert document["passed"] is (row["value"] <= row["target"])
    assert status == (0 if document["passed"] else 1)


def test_a_missed_target_is_named_in_the_table() -> None:
    """A missed target is named in its row, and gives exit status 1."""
    missed = ratio_row("slow part", [([1.0, 1.0], [2.0, 2.0])] * 2, target=1.15)
    assert overhead.describe(missed).splitlines()[0].startswith("slow part")
    assert "MISSED" in overhead.describe(missed)
    assert overhead.exit_status([missed]) == 1
