"""`agentkv train-predictor`: what it writes can be used, and bad traces are explained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv import DurationPredictor
from agentkv.cli import main as agentkv
from agentkv.policies.settings import Settings
from tests.evals.trace_rows import synthetic_lines, write_lines


def train(path: Path, out: Path, *options: str) -> int:
    return agentkv(["train-predictor", str(path), "--out", str(out), *options])


def test_a_predictor_of_ones_own_is_shown_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FILE.py:CLASS learns from a trace, and a shipped kind without trees is refused."""
    example = Path(__file__).parents[2] / "examples/predictors/by_program.py"
    path, out = write_lines(tmp_path / "trace.jsonl", [LINE] * 3), tmp_path / "mine.json"
    assert train(path, out, "--kind", f"{example}:ByProgram") == 0
    predictor = DurationPredictor(f"{example}:ByProgram")
    assert predictor.load(out)
    assert predictor.predict(LINE["command"]).source == "program"
    assert train(path, out, "--kind", "rules", "--force") == 2
    assert "'rules', which has no trees to train" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["default", "context_serve", "boosted"])
def test_the_file_holds_a_predictor_that_knows_the_trace(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`load` takes the file, which holds trees and runs; a second training gives the same bytes."""
    path = write_lines(tmp_path / "trace.jsonl", synthetic_lines(240))
    out, again = tmp_path / "made" / "predictor.json", tmp_path / "again.json"
    assert train(path, out, "--kind", kind) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (document["kind"], document["num_commands"], document["seed"]) == (kind, 240, 0)
    assert document["num_at_least"] > 0 < document["num_at_most"]
    assert document["num_bytes"] == out.stat().st_size
    predictor = DurationPredictor(kind)
    assert predictor.load(out)
    assert predictor.num_observed == 240
    assert predictor.predict("npm install").p50_s > 5 > predictor.predict("ls -la").p50_s
    assert "models" in json.loads(out.read_text())
    assert train(path, again, "--kind", kind, "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert again.read_bytes() == out.read_bytes()


LINE: dict[str, Any] = {"command": "ls", "duration_s": 0.5}


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ([LINE, {"command": "ls"}], [], "trace.jsonl: line 2: duration_s is null"),
        ([LINE, {"duration_s": 1.0}], [], "line 2: command: Field required; seen: fields"),
        ([LINE, LINE | {"duration_s": -1}], [], "line 2: duration_s: Input should be greater"),
        ([LINE] * 99, [], "99 runs are too few, 100 are needed"),
        ([LINE] * 200, ["--kind", "context_serve"], "commands over and under 5 s"),
        ([], [], "trace.jsonl: is empty"),
    ],
)
def test_a_trace_that_cannot_be_used_is_explained(
    lines: list[dict[str, Any]],
    options: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 2 and one line with the file, the line, the value seen and what is needed."""
    path = write_lines(tmp_path / "trace.jsonl", lines)
    assert train(path, tmp_path / "out.json", *options) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_a_command_and_its_seconds_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`agentkv predict` and the server read what --force writes over a file that exists."""
    lines = [
        {"command": command, "duration_s": duration_s}
        for duration_s in (0.1, 0.2, 7.0, 8.0)
        for command in ["frobnicate", "./mystery --all"]
    ]
    path = write_lines(tmp_path / "trace.jsonl", lines * 20)
    out = tmp_path / "predictor.json"
    out.write_text("mine")
    assert train(path, out) == 2
    assert "--force" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert train(path, out, "--force") == 0
    assert agentkv(["predict", "frobnicate", "--state", str(out)]) == 0
    assert Settings(policy="agentkv", predictor_state=str(out)).predictor == "default"
