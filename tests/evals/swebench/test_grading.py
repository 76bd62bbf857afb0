"""Facts about grading without containers, on the suite, by the official harness's own code."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench.grading import evaluate
from agentkv.evals.swebench.instances import Instance
from tests.evals.swebench.run_folders import SUITE, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap")]
FIRST, SECOND = (instance["instance_id"] for instance in SUITE[:2])
GOLD = SUITE[0]["patch"]
TWO_PATCHES = {FIRST: GOLD, SECOND: SUITE[1]["patch"]}
RUN_TESTS = "python3 -m pytest"
WRONG = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"


def graded(folder: Path, **options: Any) -> dict[str, Any]:
    """The content of eval.json after an evaluation without containers."""
    evaluate(folder, mode="daemon-less", **options)
    found: dict[str, Any] = json.loads((folder / "eval.json").read_text())
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in document["results"].items()}


def with_script(old: str, new: str) -> dict[str, str]:
    return {"eval_script": SUITE[0]["eval_script"].replace(old, new)}


CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any] | None, str, str]] = {
    "right": ({}, GOLD, {}, "resolved", ""),
    "no effect": ({}, f"{WRONG}@@ -0,0 +1 @@\n+x\n", {}, "unresolved", "2 of 2 FAIL_TO_PASS fail"),
    "no patch": ({}, " \n", {"exit_status": "LimitsExceeded"}, "empty", "LimitsExceeded"),
    "no agent": (
        {},
        "",
        {"exit_status": "ConnectionError", "exception_str": "no answer"},
        "error",
        "the agent failed: no answer",
    ),
    "not run": ({}, "", None, "error", "not run"),
    "no file": ({}, GOLD.replace("csvline", "nothing"), {}, "error", "the patch does not apply"),
    "half a character": ({}, f"{GOLD}\ud83d", {}, "error", "UnicodeEncodeError"),
    "too slow": (
        with_script(RUN_TESTS, "sleep 60; true"),
        GOLD,
        {},
        "error",
        "took longer than 1 seconds",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The evaluations of instances, each of which ends in another way, the slow one apart."""
    found: dict[str, Any] = {}
    slow = {name: case for name, case in CASES.items() if name == "too slow"}
    others = {name: case for name, case in CASES.items() if name not in slow}
    for cases, time_limit_s in ((slow, 1), (others, 300)):
        folder = tmp_path_factory.mktemp("cases")
        rows = [SUITE[0] | case[0] | {"instance_id": name} for name, case in cases.items()]
        patches = {name: case[1] for name, case in cases.items()}
        over = {name: case[2] for name, case in cases.items() if case[2] is not None}
        write_run(folder, patches, rows=rows, over=over)
        found |= graded(folder, time_limit_s=time_limit_s)["results"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_result_has_its_reason(results: dict[str, Any], name: str) -> None:
    """An odd patch, field or end of the agent is the result of that instance alone."""
    *_, status, reason = CASES[name]
    assert results[name]["status"] == status
    assert reason in results[name]["detail"]


def test_an_interrupt_ends_the_tests_that_run(tmp_path: Path) -> None:
    """SIGTERM ends an evaluation, which keeps the verdicts so far."""
    rows: list[Instance] = [SUITE[1], SUITE[0] | with_script(RUN_TESTS, "sleep 600; true")]
    folder = write_run(tmp_path / "run", TWO_PATCHES, rows=rows)
    program = [sys.executable, "-m", "agentkv.cli", "swebench", "eval", str(folder)]
    process = subprocess.Popen(
        [*program, "--mode", "daemon-less"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    assert any("[1/2]" in line for line in process.stderr)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in said
    assert statuses(json.loads((folder / "eval.json").read_text())) == {SECOND: "resolved"}


def test_a_report_is_kept_until_the_patch_is_another(tmp_path: Path) -> None:
    """A second evaluation grades what has no report of its patch only."""
    folder = write_run(tmp_path / "run", TWO_PATCHES, rows=SUITE[:2], over={FIRST: {}})
    assert statuses(graded(folder)) == {FIRST: "resolved", SECOND: "error"}
    logs = folder / "eval" / "daemon-less" / "logs" / "run_evaluation" / "agentkv" / "continuum"
    before = (logs / FIRST / "report.json").stat().st_mtime_ns
    write_run(folder, TWO_PATCHES, rows=SUITE[:2], over={SECOND: {}})
    assert statuses(graded(folder)) == {FIRST: "resolved", SECOND: "resolved"}
    assert (logs / FIRST / "report.json").stat().st_mtime_ns == before
    another = {**TWO_PATCHES, FIRST: f"{WRONG}@@ -0,0 +1 @@\n+x\n"}
    write_run(folder, another, rows=SUITE[:2])
    assert statuses(graded(folder)) == {FIRST: "unresolved", SECOND: "resolved"}
