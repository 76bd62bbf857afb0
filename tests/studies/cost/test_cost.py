"""The overhead benchmark judges what it measures, and says so by its exit status."""

from __future__ import annotations

import json

import pytest

from studies.cost import __main__ as overhead
from studies.cost import client, predictor
from studies.cost.rows import ratio_row


@pytest.mark.parametrize(("ours_s", "is_met"), [(1.05, True), (1.2, False)])
def test_a_ratio_is_the_median_over_rounds(ours_s: float, is_met: bool) -> None:
    """A slow round counts once in a ratio, which passes up to its target, or without one."""
    stock_s, all_s = [[1.0, 1.0], [5.0, 5.0], [1.0, 1.0]], [[ours_s] * 2, [5 * ours_s] * 2, [9, 9]]
    row = ratio_row("r", stock_s, all_s, target=1.15)
    assert row.value == pytest.approx(ours_s)
    assert row.has_passed is is_met
    assert ("MISSED" in overhead.describe(row)) is not is_met
    assert ratio_row("r", stock_s, all_s, target=None).has_passed


def test_the_document_says_what_was_measured_on_what(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --json standard output is one document with n, spread, versions and seed."""
    monkeypatch.setattr(predictor, "NUM_COMMANDS", 20)
    parts = ("--only", "middleware", "--only", "predictor")
    status = overhead.main([*parts, "--json", "--seed", "3"])
    document = json.loads(capsys.readouterr().out)
    row, *others = document["rows"]
    assert document["seed"] == 3
    assert {"agentkv", "python", "starlette"} <= document["versions"].keys()
    assert (row["n"], [other["n"] for other in others]) == (client.NUM_BODIES, [20, 20, 1, 20, 20])
    assert all(each["low"] <= each["value"] <= each["high"] for each in (row, *others[:2]))
    assert document["passed"] is all(each["has_passed"] for each in document["rows"])
    assert status == (0 if document["passed"] else 1)
