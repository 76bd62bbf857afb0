"""Facts about the demo: the tiny suite from the agent's first turn to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench import demo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_bubblewrap() is None, reason="no bubblewrap that works here"),
]


def play(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON document and what stands on standard error."""
    status = demo.main(["--json", *flags])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


@pytest.mark.parametrize(
    ("model", "resolved", "unresolved"), [("scripted:gold", 6, 0), ("scripted:wrong", 0, 6)]
)
def test_solutions_decide_what_is_resolved(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    resolved: int,
    unresolved: int,
) -> None:
    """Right solutions resolve all, wrong ones nothing, through the agent, sandbox and harness."""
    out = tmp_path / "run"
    status, document, text = play(capsys, "--model", model, "--out", str(out))
    assert status == 0, text
    assert (document["resolved"], document["unresolved"]) == (resolved, unresolved), text
    assert (document["instances"], document["empty"], document["error"]) == (6, 0, 0)
    assert document["mode"] == "daemon-less"
    assert document["policy"] == "scripted"
    assert document["run"] == str(out)
    assert "**daemon-less grading**" in (out / "report.md").read_text()


def test_a_demo_does_not_overwrite_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second one into the same folder needs --force, or goes on with --resume."""
    flags = ["--model", "scripted:gold", "--slice", "0:1", "--out", str(tmp_path / "run")]
    assert demo.main(flags) == 0
    assert demo.main(flags) == 2
    assert "--resume" in capsys.readouterr().err
    assert demo.main([*flags, "--resume"]) == 0


def test_flags_of_the_real_server_are_refused_with_scripted_solutions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No policy is measured where there is no server with one."""
    assert demo.main(["--model", "scripted:gold", "--policy", "fcfs"]) == 2
    assert "--model demo" in capsys.readouterr().err
