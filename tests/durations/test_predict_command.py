"""`agentkv predict`: what it prints, in both forms, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.durations import DurationPredictor
from agentkv.evals.commands.predict import main


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["cd /testbed && python3.11 -m pytest -q"], "programs  python:-m:pytest"),
        (["ls", "--kind", "rules"], "pinned for 3 s"),
        (["pip install x", "--kind", "rules"], "freed at once"),
        (["grep \udcff ."], "\ufffd"),
        (["echo " + "x" * 1_000_000 + "\nls"], "echo xxx"),
    ],
    ids=["programs", "pinned", "freed", "no UTF-8", "long"],
)
def test_a_person_reads_what_and_why(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pin, times, chances, programs and reason follow the command, a line of valid text."""
    assert agentkv(["predict", *argv]) == 0
    printed = capsys.readouterr().out
    for part in (said, "p50", "p90", "P(over)", "5 s: 0.", "source"):
        assert part in printed
    assert len(printed.splitlines()[0]) < 120


def test_lines_of_standard_input_are_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line is a command, without blank ones and bytes outside UTF-8; no line is bad usage."""
    for content, status in ((b"ls\n\ngrep \xff .\n", 0), (b"\n", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        assert agentkv(["predict", "-", "--json"]) == status
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["predictions"]
    assert [row["command"] for row in rows] == ["ls", "grep \ufffd ."]
    assert "no command" in printed.err


def test_what_was_learned_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A saved state moves the median of a made-up tool."""
    predictor = DurationPredictor()
    for _ in range(20):
        predictor.observe("frobnicate all", 50.0)
    predictor.save(tmp_path / "state.json")
    asked = ["frobnicate all", "--state", str(tmp_path / "state.json")]
    assert main([*asked, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_observed"] == 20
    assert document["predictions"][0]["p50_s"] > 10


@pytest.mark.parametrize("content", [None, b"", b"\xff", b'{"kind": "bayes"}'])
def test_a_state_that_does_not_fit_is_bad_usage(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state that is missing, empty, binary or of another kind is exit status 2 with its name."""
    path = tmp_path / "state.json"
    if content is not None:
        path.write_bytes(content)
    assert agentkv(["predict", "ls", "--state", str(path)]) == 2
    assert "state.json" in capsys.readouterr().err
