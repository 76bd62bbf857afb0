"""`agentkv policy`: the template runs as it is, and the check says what it found."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from agentkv.cli import main as agentkv
from agentkv.evals.commands.policy import class_name
from agentkv.policies import load_policy


def test_the_template_is_a_policy_that_keeps_its_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `new` writes is a class with a setting, and `check` ends with status 0."""
    monkeypatch.chdir(tmp_path)
    assert agentkv(["policy", "new", "mine.py"]) == 0
    assert "agentkv policy check ./mine.py:Mine" in capsys.readouterr().out
    assert load_policy("./mine.py:Mine").settings_class(hold_s=3.0)
    assert len((tmp_path / "mine.py").read_text().splitlines()) <= 30
    assert agentkv(["policy", "check", './mine.py:Mine{"hold_s": 3.0}', "--examples", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    document = json.loads(shown[-1])
    assert (document["policy"], document["broken"]) == ('Mine{"hold_s":3.0}', [])
    assert shown[0].startswith('Mine{"hold_s":3.0}: 3 schedules')
    assert shown[1:-1] == [line for line in shown[1:-1] if line.startswith("  kept ")]


def test_a_broken_promise_is_shown_with_its_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and one line for each event of the smallest schedule."""
    bad = "tests.testing.bad_policies:Raises"
    assert agentkv(["policy", "check", bad, "--examples", "1"]) == 1
    shown = capsys.readouterr().out
    assert "BROKEN  each answer can be used" in shown
    assert "turn_finished raised ZeroDivisionError: planted" in shown
    assert "    1. a turn of job " in shown
    (found,) = json.loads(shown.splitlines()[-1])["broken"]
    assert found["schedule"][0].startswith("an engine of ")
    assert found["schedule"][1].startswith("a turn of job ")


def test_without_hypothesis_the_check_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2 and one line, before any schedule is played."""
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "agentkv.testing.promises", raising=False)
    assert agentkv(["policy", "check", "fcfs"]) == 2
    assert ".[testing]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["new", "taken.py"], "taken.py exists: choose another name, or --force"),
        (["new", "mine.txt"], "allowed is a name that ends in .py"),
        (["check", "lifo"], "got 'lifo', allowed are fcfs"),
        (["check", "./missing.py:Mine"], "missing.py: no such file"),
        (["check", "agentkv+offload"], "allowed is a policy without +offload"),
    ],
)
def test_bad_usage_is_explained(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Status 2 and a message with what was seen; no file is overwritten without --force."""
    monkeypatch.chdir(tmp_path)
    Path("taken.py").write_text("mine")
    assert agentkv(["policy", *words]) == 2
    assert message in capsys.readouterr().err
    assert Path("taken.py").read_text() == "mine"
    assert agentkv(["policy", "new", "taken.py", "--force"]) == 0


@pytest.mark.parametrize(
    ("file", "name"), [("mine.py", "Mine"), ("my_rule-2.py", "MyRule2"), ("2nd.py", "Policy2nd")]
)
def test_the_class_is_named_by_its_file(file: str, name: str) -> None:
    """Words of the file's name begin with a capital; the result is a name in Python."""
    assert class_name(Path(file)) == name
