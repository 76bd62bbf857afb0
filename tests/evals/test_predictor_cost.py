"""The benchmark of predict and observe runs and tells its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.predictor_cost import TARGETS_US, main

from .trace_rows import synthetic_lines, write_lines


@pytest.mark.parametrize("with_trace", [False, True])
def test_the_last_line_is_one_document(
    with_trace: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Median and p99 of predict and observe, on built-in commands or a trace's."""
    path = write_lines(tmp_path / "trace.jsonl", synthetic_lines(20))
    assert main([*([str(path)] if with_trace else []), "--kinds", "default", "--num", "20"]) in (
        0,
        1,
    )
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["what"] for row in document["rows"]} == {"analyze", "predict", "observe"}
    for row in document["rows"]:
        assert 0 < row["median_us"] <= row["p99_us"]
        assert row["n"] == 20


def test_fresh_predictions_of_the_default_are_held_to_a_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other kinds are only measured."""
    main(["--kinds", "default", "first_word", "--num", "3", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    judged = {(row["kind"], row["what"]) for row in rows if row["targets_us"]}
    assert judged == {("default", what) for what in TARGETS_US}


def test_an_unusable_trace_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and the file's name."""
    assert main([str(tmp_path / "nothing.jsonl")]) == 2
    assert "nothing.jsonl" in capsys.readouterr().err
