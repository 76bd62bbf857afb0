"""Facts about grading without containers, on the suite, by the official harness's own code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import command
from agentkv.evals.swebench.grading import evaluate
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import SUITE, gold_patches, row, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("bubblewrap")]
FIRST, SECOND = (instance.instance_id for instance in SUITE[:2])
GOLD = SUITE[0].patch
FIRST_PATCH, TWO_PATCHES = {FIRST: GOLD}, {FIRST: GOLD, SECOND: SUITE[1].patch}
RUN_TESTS = "python3 -m pytest"
WRONG = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"


def graded(folder: Path, **options: Any) -> dict[str, Any]:
    """The content of eval.json after an evaluation without containers."""
    evaluate(folder, mode="daemon-less", say=lambda text: None, **options)
    found: dict[str, Any] = json.loads((folder / "eval.json").read_text())
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in document["results"].items()}


def write_dataset(folder: Path, *changes: dict[str, Any]) -> str:
    """A dataset of the suite's first instances, each with these fields changed."""
    raws = [one.raw | change for one, change in zip(SUITE, changes, strict=False)]
    (folder / "dataset.json").write_text(json.dumps(raws))
    return str(folder / "dataset.json")


def with_script(old: str, new: str) -> dict[str, str]:
    return {"eval_script": SUITE[0].raw["eval_script"].replace(old, new)}


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
    "no script": ({"eval_script": ["ls"]}, GOLD, {}, "error", "lacks eval_script"),
    "no goal": ({"FAIL_TO_PASS": []}, GOLD, {}, "error", "no FAIL_TO_PASS tests"),
    "no list": ({"PASS_TO_PASS": None}, GOLD, {}, "error", "lacks PASS_TO_PASS"),
    "no parser": ({"log_parser": "nobody's"}, GOLD, {}, "error", 'KeyError: "nobody\'s"'),
    "odd assets": ({"image_assets": "{"}, GOLD, {}, "error", "JSONDecodeError"),
    "no clone": ({"repo": "django/django"}, GOLD, {}, "error", "none of the folders no clone,"),
    "too slow": (with_script(RUN_TESTS, "sleep 60; true"), GOLD, {}, "error", "than 15 s"),
}


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, repositories: dict[str, Path]
) -> dict[str, Any]:
    """The evaluation of a run of instances, each of which ends in another way."""
    folder = tmp_path_factory.mktemp("cases")
    raws = [SUITE[0].raw | case[0] | {"instance_id": name} for name, case in CASES.items()]
    (folder / "dataset.json").write_text(json.dumps(raws))
    ran = {name: case for name, case in CASES.items() if case[2] is not None}
    rows = [row(name, **(fields or {})) for name, (_, _, fields, _, _) in ran.items()]
    patches = {name: case[1] for name, case in ran.items()}
    dataset = str(folder / "dataset.json")
    write_run(folder / "run", patches, dataset=dataset, rows=rows, instance_ids=list(CASES))
    clones = next(iter(repositories.values())).parent
    limits = {"workers": 2, "time_limit_s": 15}
    found: dict[str, Any] = graded(folder / "run", repositories=clones, **limits)["results"]
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_result_has_its_reason(results: dict[str, Any], name: str) -> None:
    """An odd patch, field or end of the agent is the result of that instance alone."""
    *_, status, reason = CASES[name]
    assert results[name]["status"] == status
    assert reason in results[name]["detail"]


def test_tests_see_neither_the_network_nor_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look outside of the sandbox would fail this instance; the run's folder may be relative."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_text("")
    looks = f"[ -e {tmp_path / 'secret'} ] || [ $(grep -c : /proc/net/dev) -gt 1 ] || touch /usr/x"
    probe = with_script(RUN_TESTS, f"if {looks}; then exit 1; fi; {RUN_TESTS}")
    dataset = write_dataset(tmp_path, probe)
    found = graded(write_run(Path("runs/ours"), FIRST_PATCH, dataset=dataset))
    assert statuses(found) == {FIRST: "resolved"}
    assert found["mode"] == "daemon-less"
    assert found["harness_version"].startswith("5.")


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
    assert list((folder / "eval" / "daemon-less" / "worktrees").iterdir()) == []


def test_verdicts_are_kept_until_patch_or_tests_change(tmp_path: Path) -> None:
    """A second evaluation grades a changed patch only, and all if the instances changed."""
    folder = write_run(tmp_path / "run", TWO_PATCHES)
    graded(folder)
    logs = [folder / "eval" / "daemon-less" / name / "report.json" for name in TWO_PATCHES]
    before = [path.stat().st_mtime_ns for path in logs]
    wrong = SUITE[1].patch.replace("default=0", "default=1")
    write_run(folder, {**TWO_PATCHES, SECOND: wrong})
    assert statuses(graded(folder)) == {FIRST: "resolved", SECOND: "unresolved"}
    after = [path.stat().st_mtime_ns for path in logs]
    assert (after[0] == before[0], after[1] > before[1]) == (True, True)
    other = {"FAIL_TO_PASS": ["tests/test_csvline.py::test_that_is_not_there"]}
    dataset = write_dataset(tmp_path, other, {})
    assert statuses(graded(folder, dataset=dataset))[FIRST] == "unresolved"


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the images that would be needed, and leaves the folder as it is."""
    folder = write_run(tmp_path, gold_patches())
    before = sorted(folder.iterdir())
    assert command.main(["eval", str(folder), "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["to_grade"] == 6
    assert planned["images"][0] == "agentkv/swebench-suite-intervals:1.0"
    assert sorted(folder.iterdir()) == before


def test_a_damaged_evaluation_is_named(tmp_path: Path) -> None:
    """A file of another shape is not taken for an empty evaluation, and --redo replaces it."""
    write_run(tmp_path, FIRST_PATCH)
    for entry in ({}, {"status": "good"}):
        (tmp_path / "eval.json").write_text(json.dumps({"results": {"a-1": entry}}))
        with pytest.raises(SwebenchError, match="--redo"):
            graded(tmp_path)
    assert statuses(graded(tmp_path, is_redone=True)) == {FIRST: "resolved"}
