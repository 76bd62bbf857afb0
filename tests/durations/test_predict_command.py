"""`agentkv predict`: what it prints, in both forms, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.durations import DurationPredictor
from agentkv.predict import main


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Standard input with these bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_person_reads_what_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Speed, times, chances, programs and the reason follow the command."""
    assert agentkv(["predict", "cd /testbed && python3.11 -m pytest -q"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "cd /testbed && python3.11 -m pytest -q"
    text = "\n".join(rest)
    for part in ("p50", "p90", "P(over)", "5 s: 0.", "python:-m:pytest", "source"):
        assert part in text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["ls", "--kind", "rules"], "pinned for 3 s"),
        (["pip install x", "--kind", "rules"], "freed at once"),
        (["grep \udcff ."], "\ufffd"),
        (["echo " + "x" * 1_000_000 + "\nls"], "echo xxx"),
    ],
    ids=["pinned", "freed", "no UTF-8", "long"],
)
def test_a_person_reads_the_consequence(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pin of each verdict is printed, for a command clipped to a line of valid text."""
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert len(printed.splitlines()[0]) < 120


def test_lines_of_standard_input_are_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line is a command; blank ones are skipped, bytes outside UTF-8 are replaced."""
    type_in(monkeypatch, b"ls\n\ngrep \xff .\n")
    assert main(["-", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["command"] for row in rows] == ["ls", "grep \ufffd ."]


def test_no_command_is_bad_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty standard input is exit status 2 and one line."""
    type_in(monkeypatch, b"\n")
    assert main(["-"]) == 2
    assert "no command" in capsys.readouterr().err


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
    assert main(["ls", "--state", str(path)]) == 2
    assert "state.json" in capsys.readouterr().err
