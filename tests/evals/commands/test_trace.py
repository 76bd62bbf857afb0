"""`agentkv trace`: what logs are like, and logs as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv import cli
from agentkv.evals.traces.formats import read_turns
from tests.evals.trace_rows import write_lines


def turn(job_id: str, number: int, prompt: int, **more: Any) -> dict[str, Any]:
    line = {"job_id": job_id, "turn": number, "prompt_tokens": prompt, "output_tokens": 50}
    return line | {"command": "pytest -q tests", "tool_s": 2.0} | more


def log(folder: Path) -> Path:
    broken = turn("a", 2, 300, kept_tokens=120, command=None, tool_s=None)
    later = turn("b", 0, 90, sent_s=5.0, ended_s=7.0)
    lines = [turn("a", 0, 100), turn("a", 1, 180), broken, later]
    return write_lines(folder / "own.jsonl", lines)


def test_show_says_where_prompts_broke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs, tools by their keys, quantiles, and the prompts that kept little of what was before."""
    path = str(log(tmp_path))
    assert cli.main(["trace", "show", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["jobs"], found["turns"], found["tools"]) == (2, 4, {"pytest tests": 3})
    assert found["quantiles"]["tool_s"] == [2.0] * 4
    assert (found["later_turns"], found["broken_turns"]) == (2, 1)
    (broken,) = found["broken"]
    assert (broken["job_id"], broken["turn"]) == ("a", 2)
    assert broken["kept_share"] == pytest.approx(120 / 230)
    assert cli.main(["trace", "show", path, "--out", str(tmp_path / "p.png")]) == 0
    assert "a turn 2: 52% kept, 300 tokens" in capsys.readouterr().out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_converted_turns_are_the_same_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file written is read back whole, and is not written over."""
    path, out = log(tmp_path), tmp_path / "out.jsonl"
    assert cli.main(["trace", "convert", str(path), "--out", str(out)]) == 0
    assert read_turns(out) == read_turns(path)
    assert cli.main(["trace", "convert", str(path), "--out", str(out)]) == 2
    assert f"{out} exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        (["show", "missing.jsonl"], "missing.jsonl: no such file"),
        (["show", "x.json", "--out", "x.txt"], "allowed is a name with .png or .svg"),
        (["convert", "missing.jsonl"], "convert needs --out FILE"),
        (["show", "x.json", "--tokenizer", "x.json"], "--tokenizer x.json: no tokenizer.json"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    seen: str,
) -> None:
    """Status 2, and the file or flag at fault."""
    monkeypatch.chdir(tmp_path)
    Path("x.json").write_text("{}")
    try:
        status = cli.main(["trace", *arguments])
    except SystemExit as ended:  # argparse's own
        status = int(ended.code or 0)
    assert status == 2
    assert seen in capsys.readouterr().err
