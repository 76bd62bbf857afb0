"""Predictors are judged on a made-up trace, and scores are what they are said to be."""

import json
import math
import random
from pathlib import Path

import pytest

from agentkv.durations import DurationPredictor, Prediction
from studies.predictor.__main__ import auc, main
from studies.predictor.traces import TracedCommand, read_trace
from tests.evals.trace_rows import write_lines

TYPICAL_S = {f"./tool{number}": 0.05 * 1.06**number for number in range(120)}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Commands that say nothing by their names, around their typical durations."""
    chance = random.Random(0)
    commands = [chance.choice(list(TYPICAL_S)) for _ in range(240)]
    rows = [
        {"command": name, "duration_s": TYPICAL_S[name] * math.exp(chance.gauss(0.0, 0.4))}
        for name in commands
    ]
    return write_lines(tmp_path / "trace.jsonl", rows)


def forecasts(*commands: tuple[float, float]) -> list[tuple[TracedCommand, Prediction]]:
    """Rows of (seconds, predicted seconds)."""
    found = []
    for number, (duration_s, predicted_s) in enumerate(commands):
        predictor = DurationPredictor()
        for _ in range(30):
            predictor.observe(f"./tool{number}", predicted_s)
        found.append((TracedCommand("ls", duration_s), predictor.predict(f"./tool{number}")))
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


@pytest.mark.parametrize(
    ("fields", "duration_s", "bound"),
    [
        ({}, 0.5, "exact"),
        ({"duration_s": None, "censored": True}, 3.0, "upper"),
        ({"duration_s": 1.5, "censored": True}, 1.5, "upper"),
        ({"duration_s": 60.2, "is_error": True, "timeout_s": 60.0}, 60.2, "lower"),
        ({"duration_s": 59.0, "is_error": True, "timeout_s": 60.0}, 59.0, "exact"),
    ],
)
def test_a_line_gives_a_duration_or_a_bound(
    tmp_path: Path, fields: dict[str, object], duration_s: float, bound: str
) -> None:
    """A censored command took at most 3 s, one at its time-out at least that; others are exact."""
    rows = [{"command": "ls", "duration_s": 0.5, "order": 2.0} | fields]
    (only,) = read_trace(write_lines(tmp_path / "trace.jsonl", rows))
    assert (only.duration_s, only.bound) == (duration_s, bound)
