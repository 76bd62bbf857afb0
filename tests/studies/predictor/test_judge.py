"""Predictors are judged on a made-up trace, and scores are what they are said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.durations import DurationPredictor, Prediction
from agentkv.evals.traces.commands import TracedCommand
from studies.predictor.__main__ import auc, main
from tests.evals.trace_rows import row, synthetic_lines, write_lines


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "trace.jsonl", synthetic_lines(240))


def forecasts(*commands: tuple[float, float]) -> list[tuple[TracedCommand, Prediction]]:
    """Rows of (seconds, predicted seconds)."""
    found = []
    for number, (duration_s, predicted_s) in enumerate(commands):
        predictor = DurationPredictor()
        for _ in range(30):
            predictor.observe(f"./tool{number}", predicted_s)
        found.append((row(duration_s), predictor.predict(f"./tool{number}")))
    return found


def test_an_auc_is_the_share_of_pairs_in_order() -> None:
    """Of pairs of a longer and a shorter command, those whose forecasts are in that order."""
    assert auc(forecasts((1.0, 1.0), (20.0, 20.0)), 5.0) == 1.0
    assert auc(forecasts((1.0, 20.0), (20.0, 1.0)), 5.0) == 0.0
    assert auc(forecasts((1.0, 1.0), (2.0, 30.0), (20.0, 20.0)), 5.0) == 0.5
    assert auc(forecasts((1.0, 1.0), (2.0, 1.0)), 5.0) is None


def test_predictors_learn_and_are_judged(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each predictor gets a line and a row; one that has learned errs less than a cold one."""
    assert main([str(trace), "--kinds", "default", "context_serve"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["default", "context_serve"]
    document = json.loads(lines[-1])
    learned = document["rows"][0]
    assert learned["num_judged"] == 72
    assert {"commit", "versions", "seed", "config"} <= set(document)
    assert main([str(trace), "--kinds", "default", "--split", "cold"]) == 0
    cold = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"][0]
    assert cold["num_judged"] == 240
    assert learned["median_abs_log_error"] < cold["median_abs_log_error"]
