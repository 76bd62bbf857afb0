"""The benchmark of predict and observe runs and reports its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.predictor.cost import TARGETS_US, main
from tests.evals.trace_rows import synthetic_lines, write_lines


@pytest.mark.parametrize("with_trace", [False, True])
def test_the_last_line_holds_the_times_of_every_call(
    with_trace: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Median and p99 are reported on built-in commands and on those of a trace."""
    path = write_lines(tmp_path / "trace.jsonl", synthetic_lines(20))
    asked = [*([str(path)] if with_trace else []), "--kinds", "default", "--num", "20"]
    assert main(asked) in (0, 1)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert set(TARGETS_US) < {(row["what"], row["commands"]) for row in rows}
    assert all(0 < row["median_us"] <= row["p99_us"] for row in rows)


def test_an_unusable_trace_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing trace is exit status 2 with the file's name."""
    assert main([str(tmp_path / "nothing.jsonl")]) == 2
    assert "nothing.jsonl" in capsys.readouterr().err
