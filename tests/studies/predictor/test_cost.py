"""The benchmark of predict and observe runs and reports its numbers."""

from __future__ import annotations

import json

import pytest

from studies.predictor.cost import TARGETS_US, main


def test_the_last_line_holds_the_times_of_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    """Median and p99 of each kind of call are reported, and a missed target is exit status 1."""
    status = main(["--kinds", "default", "--num", "20"])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["what"] for row in document["rows"]] == list(TARGETS_US)
    assert all(0 < row["median_us"] <= row["p99_us"] for row in document["rows"])
    assert document["passed"] is (status == 0)
