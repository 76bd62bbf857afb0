"""Facts about the demo: the suite from the agent's first turn to the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.evals.swebench import command
from tests.evals.swebench.run_folders import SUITE


@pytest.mark.slow
@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("solution", "counts"), [("gold", (6, 0)), ("wrong", (0, 6))])
def test_solutions_decide_what_is_resolved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], solution: str, counts: tuple[int, int]
) -> None:
    """Right solutions make all tests pass; wrong ones fail what they should mend, and no more."""
    flags = ["demo", "--model", f"scripted:{solution}", "--out", str(tmp_path / "run"), "--json"]
    assert command.main(flags) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["resolved"], document["unresolved"]) == counts
    assert document["mode"] == "daemon-less"
    results = json.loads((tmp_path / "run" / "eval.json").read_text())["results"]
    for instance in SUITE:
        tests = json.loads(json.dumps(instance["FAIL_TO_PASS"]))
        failed = f"{len(tests)} of {len(tests)} FAIL_TO_PASS fail, first {tests[0]}"
        assert "b/tests/" not in instance["patch"]
        detail = results[instance["instance_id"]]["detail"]
        assert detail == ("" if solution == "gold" else failed)
