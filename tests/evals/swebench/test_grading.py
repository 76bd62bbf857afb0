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
FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH = (instance.instance_id for instance in SUITE)
FIRST_PATCH = {FIRST: SUITE[0].patch}
TWO_PATCHES = {FIRST: SUITE[0].patch, SECOND: SUITE[1].patch}
RUN_TESTS = "python3 -m pytest"


def graded(folder: Path, **options: Any) -> dict[str, Any]:
    """The content of eval.json after an evaluation without containers."""
    evaluate(folder, mode="daemon-less", say=lambda text: None, **options)
    found: dict[str, Any] = json.loads((folder / "eval.json").read_text())
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in document["results"].items()}


def write_dataset(folder: Path, *changes: dict[str, Any]) -> str:
    """A dataset of the suite's first instances, each with these fields changed."""
    folder.mkdir(exist_ok=True)
    raws = [one.raw | change for one, change in zip(SUITE, changes, strict=False)]
    (folder / "dataset.json").write_text(json.dumps(raws))
    return str(folder / "dataset.json")


def with_script(old: str, new: str) -> dict[str, str]:
    return {"eval_script": SUITE[0].raw["eval_script"].replace(old, new)}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The evaluation of six instances, each of which ends in another way."""
    folder = tmp_path_factory.mktemp("mixed")
    script = SUITE[3].raw["eval_script"].replace("-m pytest", "-m no_such_runner")
    changes = [{}, {}, {"FAIL_TO_PASS": []}, {"eval_script": script}, {}, {}]
    dataset = write_dataset(folder, *changes)
    gold = gold_patches()
    no_file = gold[SECOND].replace("textgrid/grid.py", "textgrid/no_such_file.py")
    patches = {**gold, SECOND: no_file, FIFTH: "  \n"}
    rows = [row(name) for name in patches if name != FIFTH]
    rows.append(row(FIFTH, exit_status="LimitsExceeded"))
    write_run(folder / "run", patches, dataset=dataset, rows=rows)
    return graded(folder / "run", workers=2)


@pytest.mark.parametrize(
    ("instance_id", "status", "reason"),
    [
        (FIRST, "resolved", ""),
        (SECOND, "error", "the patch does not apply"),
        (THIRD, "error", "no FAIL_TO_PASS tests"),
        (FOURTH, "unresolved", "no readable test output"),
        (FIFTH, "empty", "LimitsExceeded"),
        (SIXTH, "resolved", ""),
    ],
)
def test_each_result_has_its_reason(
    mixed: dict[str, Any], instance_id: str, status: str, reason: str
) -> None:
    """A bad patch, no tests, no output or no patch is the result of that instance alone."""
    result = mixed["results"][instance_id]
    assert result["status"] == status
    assert reason in result["detail"]
    assert mixed["mode"] == "daemon-less"
    assert mixed["harness_version"].startswith("5.")


def test_a_change_without_effect_resolves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests still fail after a patch that repairs nothing; the run's folder may be relative."""
    monkeypatch.chdir(tmp_path)
    wrong = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"
    folder = write_run(Path("runs/ours"), {FIRST: f"{wrong}@@ -0,0 +1 @@\n+looked at\n"})
    result = graded(folder)["results"][FIRST]
    assert result["status"] == "unresolved"
    assert "2 of 2 FAIL_TO_PASS fail" in result["detail"]


@pytest.mark.parametrize(
    ("fields", "patch", "reason"),
    [
        ({"PASS_TO_PASS": None}, "", "lacks PASS_TO_PASS"),
        ({"eval_script": ["ls"]}, "", "lacks eval_script"),
        ({"eval_script": "echo \ud83d"}, "", "no whole text"),
        ({"log_parser": "parse_log_of_nobody"}, "", "KeyError: 'parse_log_of_nobody'"),
        ({"image_assets": "{"}, "", "JSONDecodeError"),
        ({"instance_id": "django__django-1"}, "", "container image"),
        (with_script(RUN_TESTS, "sleep 60; true"), "", "than 8 s"),
        ({}, f"{SUITE[0].patch}\ud83d", "no whole text"),
    ],
)
def test_what_cannot_be_graded_is_an_error_of_its_instance(
    tmp_path: Path, fields: dict[str, Any], patch: str, reason: str
) -> None:
    """An odd field or patch has its reason, and the other instance is graded."""
    name = fields.get("instance_id", FIRST)
    dataset = write_dataset(tmp_path, fields, {"version": ""})
    patches = {name: patch or SUITE[0].patch, SECOND: SUITE[1].patch}
    folder = write_run(tmp_path / "run", patches, dataset=dataset)
    limit = {"time_limit_s": 8} if "than" in reason else {}
    found = graded(folder, **limit)["results"]
    assert (found[name]["status"], found[SECOND]["status"]) == ("error", "resolved")
    assert reason in found[name]["detail"]


def test_an_instance_that_did_not_run_is_an_error(tmp_path: Path) -> None:
    """A run cut short has a result for each instance, and a failed agent's error is the reason."""
    failed = row(FIRST, exit_status="error:ConnectionError", error="no answer from the server")
    folder = write_run(tmp_path, {FIRST: ""}, rows=[failed], instance_ids=[FIRST, SECOND])
    found = graded(folder)["results"]
    assert (found[FIRST]["status"], found[SECOND]["status"]) == ("error", "error")
    assert "no answer from the server" in found[FIRST]["detail"]
    assert "not run" in found[SECOND]["detail"]


def test_tests_see_neither_the_network_nor_the_host(tmp_path: Path) -> None:
    """A look outside of the sandbox would fail this instance."""
    (tmp_path / "secret").write_text("")
    looks = f"[ -e {tmp_path / 'secret'} ] || [ $(grep -c : /proc/net/dev) -gt 1 ] || touch /usr/x"
    probe = with_script(RUN_TESTS, f"if {looks}; then exit 1; fi; {RUN_TESTS}")
    dataset = write_dataset(tmp_path, probe)
    found = graded(write_run(tmp_path / "run", FIRST_PATCH, dataset=dataset))
    assert statuses(found) == {FIRST: "resolved"}


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
    (tmp_path / "eval.json").write_text('{"results": {"a-1": {}}}')
    with pytest.raises(SwebenchError, match="--redo"):
        graded(tmp_path)
    assert statuses(graded(tmp_path, is_redone=True)) == {FIRST: "resolved"}
