"""The overhead benchmark judges what it measures, and says so by its exit status."""

from __future__ import annotations

import json
import random

import pytest

from agentkv.integrations.vllm.settings import Settings
from studies.cost import __main__ as overhead
from studies.cost import memory as overhead_memory
from studies.cost import plugin
from studies.cost.side_by_side import difference_row, ratio_row


def test_a_difference_is_that_of_the_medians_with_the_pairs_quartiles() -> None:
    """One slow sample moves neither."""
    row = difference_row("r", [1.0, 1.0, 9.0], [1.002, 1.004, 1.003], target_ms=3.0)
    assert row.value == pytest.approx(3.0)
    assert row.low < 0 < row.high
    assert row.n == 3


def test_a_ratio_is_the_median_over_rounds() -> None:
    """Each round compares medians of its own, so a slow round counts once."""
    rounds = [([1.0, 1.0], [1.1, 1.1]), ([5.0, 5.0], [5.5, 5.5]), ([1.0, 1.0], [9.0, 9.0])]
    assert ratio_row("r", rounds, target=1.15).value == pytest.approx(1.1)


@pytest.mark.parametrize(("ours_s", "has_passed"), [(1.05, True), (1.2, False)])
def test_a_row_passes_up_to_its_target(ours_s: float, has_passed: bool) -> None:
    """Above the target it has not passed."""
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
    assert row["n"] == plugin.NUM_REQUESTS
    assert row["low"] <= row["value"] <= row["high"]
    assert document["passed"] is (row["value"] <= row["target"])
    assert status == (0 if document["passed"] else 1)


def test_a_missed_target_is_named_in_the_table() -> None:
    """By the row that missed it."""
    missed = ratio_row("slow part", [([1.0, 1.0], [2.0, 2.0])] * 2, target=1.15)
    assert overhead.describe(missed).splitlines()[0].startswith("slow part")
    assert "MISSED" in overhead.describe(missed)
    assert overhead.exit_status([missed]) == 1


def test_the_end_of_a_turn_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the plugin's own classes: its decision, and what a thread does beside it."""
    monkeypatch.setattr(plugin, "NUM_TURNS", 20)
    rows = list(plugin.measure_turns(seed=0))
    assert [row.n for row in rows] == [20, 20, 20]
    assert all(row.value > 0 for row in rows[1:])


@pytest.mark.parametrize("policy", ["continuum", "context_serve", "agentkv"])
@pytest.mark.parametrize("text", [overhead_memory.USUAL, overhead_memory.LONGEST])
def test_an_engine_is_filled_to_its_bounds(policy: str, text: overhead_memory.Text) -> None:
    """Further jobs and events push older ones out; the job that arrived last counts besides."""
    settings = Settings.model_validate({"policy": policy, "max_jobs": 300, "record_events": 2000})
    engine = overhead_memory.full_engine(text, settings, random.Random(0))
    assert len(engine.jobs) in (300, 301)
    jobs = engine.record.as_dict()["jobs"].values()
    assert sum(len(events) for events in jobs) <= 2000
