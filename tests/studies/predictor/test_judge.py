"""Predictors are judged on a made-up trace, and scores are what they are said to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.durations import DurationPredictor, Prediction
from agentkv.evals.traces.commands import TracedCommand
from studies.predictor.__main__ import auc, is_over, main
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


@pytest.mark.parametrize(
    ("duration_s", "bound", "expected"),
    [
        (5.0, "exact", False),
        (6.0, "exact", True),
        (5.0, "lower", True),
        (4.0, "lower", None),
        (5.0, "upper", False),
        (6.0, "upper", None),
    ],
)
def test_a_bound_counts_where_it_decides(
    duration_s: float, bound: str, expected: bool | None
) -> None:
    """A time-out after 5 s ran longer than 5 s; what took at most 6 s may or may not have."""
    assert is_over(row(duration_s, bound=bound), 5.0) is expected


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
    ("num_lines", "flags", "message"),
    [
        (1, (), "no command is left to judge"),
        (40, ("--kinds", "oracle"), "got 'oracle'"),
    ],
)
def test_what_cannot_be_judged_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    num_lines: int,
    flags: tuple[str, ...],
    message: str,
) -> None:
    """A trace that is too short and an unknown predictor give status 2, and the reason."""
    trace = write_lines(tmp_path / "trace.jsonl", synthetic_lines(num_lines))
    assert main([str(trace), *flags]) == 2
    assert message in capsys.readouterr().err
    assert main([str(trace), str(trace)]) == 2
    assert "named twice" in capsys.readouterr().err
