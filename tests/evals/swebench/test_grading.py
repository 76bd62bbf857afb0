"""Facts about grading without containers, on the suite, by the official harness's own code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench.grading import _verdict, evaluate, patch_sha256
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import SUITE, row, write_eval, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap")]
FIRST, SECOND = (instance["instance_id"] for instance in SUITE[:2])
GOLD = SUITE[0]["patch"]
FIRST_PATCH, TWO_PATCHES = {FIRST: GOLD}, {FIRST: GOLD, SECOND: SUITE[1]["patch"]}
RUN_TESTS = "python3 -m pytest"
WRONG = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"


def graded(folder: Path, **options: Any) -> dict[str, Any]:
    """The content of eval.json after an evaluation without containers."""
    evaluate(folder, mode="daemon-less", **options)
    found: dict[str, Any] = json.loads((folder / "eval.json").read_text())
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in document["results"].items()}


def write_dataset(folder: Path, *changes: dict[str, Any]) -> str:
    """A dataset of the suite's first instances, each with these fields changed."""
    raws = [one | change for one, change in zip(SUITE, changes, strict=False)]
    (folder / "dataset.json").write_text(json.dumps(raws))
    return str(folder / "dataset.json")


def with_script(old: str, new: str) -> dict[str, str]:
    return {"eval_script": SUITE[0]["eval_script"].replace(old, new)}


CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any] | None, str, str]] = {
    "right": ({}, GOLD, {}, "resolved", ""),
    "no effect": ({}, f"{WRONG}@@ -0,0 +1 @@\n+x\n", {}, "unresolved", "2 of 2 FAIL_TO_PASS fail"),
    "no output": (
        with_script("-m pytest", "-m nothing"),
        GOLD,
        {},
        "unresolved",
        "no readable test output",
    ),
    "no patch": ({}, " \n", {"exit_status": "LimitsExceeded"}, "empty", "LimitsExceeded"),
    "no agent": (
        {},
        "",
        {"exit_status": "error:ConnectionError", "error": "no answer"},
        "error",
        "the agent failed: no answer",
    ),
    "not run": ({}, "", None, "error", "not run"),
    "no file": ({}, GOLD.replace("csvline", "nothing"), {}, "error", "the patch does not apply"),
    "half a character": ({}, f"{GOLD}\ud83d", {}, "error", "UnicodeEncodeError"),
    "odd script": ({"eval_script": "echo \ud83d"}, GOLD, {}, "error", "UnicodeEncodeError"),
    "no script": (
        {"eval_script": ["ls"]},
        GOLD,
        {},
        "error",
        "cannot read the instance: AttributeError",
    ),
    "no goal": ({"FAIL_TO_PASS": []}, GOLD, {}, "error", "no FAIL_TO_PASS tests"),
    "no list": ({"PASS_TO_PASS": None}, GOLD, {}, "error", "TypeError"),
    "no parser": ({"log_parser": "nobody's"}, GOLD, {}, "error", 'KeyError: "nobody\'s"'),
    "odd assets": ({"image_assets": "{"}, GOLD, {}, "error", "JSONDecodeError"),
    "no clone": ({"repo": "django/django"}, GOLD, {}, "error", "lies in its image"),
    "too slow": (
        with_script(RUN_TESTS, "sleep 60; true"),
        GOLD,
        {},
        "error",
        "timed out after 15 seconds",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The evaluation of a run of instances, each of which ends in another way."""
    folder = tmp_path_factory.mktemp("cases")
    raws = [SUITE[0] | case[0] | {"instance_id": name} for name, case in CASES.items()]
    (folder / "dataset.json").write_text(json.dumps(raws))
    ran = {name: case for name, case in CASES.items() if case[2] is not None}
    rows = [row(name, **(fields or {})) for name, (_, _, fields, _, _) in ran.items()]
    patches = {name: case[1] for name, case in ran.items()}
    dataset = str(folder / "dataset.json")
    write_run(folder / "run", patches, dataset=dataset, rows=rows, instance_ids=list(CASES))
    found: dict[str, Any] = graded(folder / "run", workers=2, time_limit_s=15)["results"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_result_has_its_reason(results: dict[str, Any], name: str) -> None:
    """An odd patch, field or end of the agent is the result of that instance alone."""
    *_, status, reason = CASES[name]
    assert results[name]["status"] == status
    assert reason in results[name]["detail"]


def test_an_interrupt_ends_the_tests_that_run(tmp_path: Path) -> None:
    """SIGTERM ends an evaluation, which keeps the verdicts so far and leaves no worktree."""
    dataset = write_dataset(tmp_path, with_script(RUN_TESTS, "sleep 600; true"), {})
    folder = write_run(tmp_path / "run", TWO_PATCHES, dataset=dataset)
    program = [sys.executable, "-m", "agentkv.cli", "swebench", "eval", str(folder)]
    process = subprocess.Popen(
        [*program, "--mode", "daemon-less", "--workers", "2"],
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
    assert not (folder / "eval" / "daemon-less" / "worktrees").exists()


def test_verdicts_are_kept_until_patch_or_tests_change(tmp_path: Path) -> None:
    """A second evaluation grades a changed patch only, and all if the instances changed."""
    folder = write_run(tmp_path / "run", TWO_PATCHES)
    graded(folder)
    home = folder / "eval" / "daemon-less" / "logs" / "run_evaluation"
    logs = [home / "run-continuum" / "continuum" / name / "report.json" for name in TWO_PATCHES]
    before = [path.stat().st_mtime_ns for path in logs]
    wrong = SUITE[1]["patch"].replace("default=0", "default=1")
    write_run(folder, {**TWO_PATCHES, SECOND: wrong})
    assert statuses(graded(folder)) == {FIRST: "resolved", SECOND: "unresolved"}
    after = [path.stat().st_mtime_ns for path in logs]
    assert (after[0] == before[0], after[1] > before[1]) == (True, True)
    other = {"FAIL_TO_PASS": ["tests/test_csvline.py::test_that_is_not_there"]}
    dataset = write_dataset(tmp_path, other, {})
    assert statuses(graded(folder, dataset=dataset))[FIRST] == "unresolved"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "INFO - >>>>> Patch Apply Failed:\nerror: a.py: No such file\nTraceback ...",
            "the patch does not apply: error: a.py: No such file",
        ),
        (
            "EvaluationError: Error in evaluation for a-1: Error in evaluation for a-1: Image x/y "
            "not found for a-1\nCheck (run_instance.log) for more information.",
            "Image x/y not found for a-1",
        ),
        (
            "EvaluationError: Error in evaluation for a-1: Test timed out after 8 seconds.\nCheck",
            "Test timed out after 8 seconds.",
        ),
    ],
)
def test_an_instance_without_report_has_its_logs_reason(
    tmp_path: Path, log: str, reason: str
) -> None:
    """The harness's own words say why it graded nothing."""
    (tmp_path / "run_instance.log").write_text(log)
    status, detail = _verdict("a-1", tmp_path) or ("", "")
    assert status == "error"
    assert detail.startswith(reason)


def test_without_a_daemon_the_other_mode_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a docker daemon nothing is graded, and earlier verdicts of another mode are kept."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'no.sock'}")
    folder = write_run(tmp_path / "run", FIRST_PATCH)
    write_eval(folder, {FIRST: ("resolved", patch_sha256(GOLD))}, mode="daemon-less")
    before = (folder / "eval.json").read_text()
    with pytest.raises(SwebenchError, match="--mode daemon-less"):
        evaluate(folder, mode="docker")
    assert (folder / "eval.json").read_text() == before
