"""Facts about grading without containers, on the tiny suite, by the official harness's own code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentkv.agents.sandbox import find_bubblewrap
from agentkv.evals.swebench import eval_command
from agentkv.evals.swebench.eval_command import evaluate
from agentkv.evals.swebench.scripted_server import commands
from tests.evals.swebench.run_folders import SUITE, gold_patches, row, write_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_bubblewrap() is None, reason="no bubblewrap that works here"),
]
FIRST, SECOND, THIRD, FOURTH, FIFTH, SIXTH = (instance.instance_id for instance in SUITE)


def graded(folder: Path, **options: Any) -> dict[str, Any]:
    """What eval.json holds after an evaluation without containers."""
    evaluate(folder, mode="daemon-less", say=lambda text: None, **options)
    found: dict[str, Any] = json.loads((folder / "eval.json").read_text())
    return found


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: entry["status"] for name, entry in document["results"].items()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Six instances of which each meets another fate."""
    folder = tmp_path_factory.mktemp("mixed")
    raws = [dict(instance.raw) for instance in SUITE]
    raws[2]["FAIL_TO_PASS"] = []
    raws[3]["eval_script"] = raws[3]["eval_script"].replace("-m pytest", "-m no_such_runner")
    (folder / "instances.json").write_text(json.dumps(raws))
    gold = gold_patches()
    patches = {
        **gold,
        SECOND: gold[SECOND].replace("textgrid/grid.py", "textgrid/no_such_file.py"),
        FIFTH: "  \n",
    }
    rows = [row(name) for name in patches if name != FIFTH]
    rows.append(row(FIFTH, exit_status="LimitsExceeded"))
    write_run(folder / "run", patches, dataset=str(folder / "instances.json"), rows=rows)
    return graded(folder / "run", workers=2)


@pytest.mark.parametrize(
    ("instance_id", "status", "told"),
    [
        (FIRST, "resolved", ""),
        (SECOND, "error", "the patch does not apply"),
        (THIRD, "error", "no FAIL_TO_PASS tests"),
        (FOURTH, "unresolved", "no readable test output"),
        (FIFTH, "empty", "LimitsExceeded"),
        (SIXTH, "resolved", ""),
    ],
)
def test_each_fate_is_named_and_nothing_else_is_lost(
    mixed: dict[str, Any], instance_id: str, status: str, told: str
) -> None:
    """A patch that does not apply, no tests, no test output, no patch: each in its own result."""
    result = mixed["results"][instance_id]
    assert result["status"] == status
    assert told in result["detail"]


def test_the_file_says_how_it_was_graded(mixed: dict[str, Any]) -> None:
    """Mode and harness version stand on every evaluation."""
    assert mixed["mode"] == "daemon-less"
    assert mixed["harness_version"].startswith("5.")


def test_gold_patches_resolve_all(tmp_path: Path) -> None:
    """The suite's own solutions pass its own tests."""
    found = statuses(graded(write_run(tmp_path, gold_patches()), workers=2))
    assert found == {instance.instance_id: "resolved" for instance in SUITE}


def test_a_relative_folder_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the README: the patch is found and applied all the same."""
    monkeypatch.chdir(tmp_path)
    folder = write_run(Path("runs/ours"), {FIRST: SUITE[0].patch})
    assert statuses(graded(folder)) == {FIRST: "resolved"}


def test_a_change_without_effect_resolves_nothing(tmp_path: Path) -> None:
    """A patch that applies and repairs nothing fails the tests that the issue is about."""
    instance = SUITE[0]
    wrong = "diff --git a/NOTES b/NOTES\nnew file mode 100644\n--- /dev/null\n+++ b/NOTES\n"
    wrong += "@@ -0,0 +1 @@\n+looked at\n"
    result = graded(write_run(tmp_path, {instance.instance_id: wrong}))["results"]
    assert result[instance.instance_id]["status"] == "unresolved"
    assert "2 of 2 FAIL_TO_PASS fail" in result[instance.instance_id]["detail"]
    assert len(commands(instance, "wrong")) == len(commands(instance, "gold"))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"PASS_TO_PASS": None}, "lacks PASS_TO_PASS"),
        ({"PASS_TO_PASS": ""}, "lacks PASS_TO_PASS"),
        ({"eval_script": ["ls"]}, "lacks eval_script"),
        ({"eval_script": "echo \ud83d"}, "no whole text"),
        ({"log_parser": "parse_log_of_nobody"}, "KeyError: 'parse_log_of_nobody'"),
        ({"image_assets": "{"}, "JSONDecodeError"),
    ],
)
def test_a_field_that_the_harness_does_not_take_is_an_error_of_its_instance(
    tmp_path: Path, fields: dict[str, Any], told: str
) -> None:
    """And the others are graded."""
    raws = [{**SUITE[0].raw, **fields}, SUITE[1].raw]
    (tmp_path / "odd.json").write_text(json.dumps(raws))
    patches = {FIRST: SUITE[0].patch, SECOND: SUITE[1].patch}
    folder = write_run(tmp_path / "run", patches, dataset=str(tmp_path / "odd.json"))
    found = graded(folder)["results"]
    assert (found[FIRST]["status"], found[SECOND]["status"]) == ("error", "resolved")
    assert told in found[FIRST]["detail"]


def test_half_of_a_character_in_a_patch_is_an_error(tmp_path: Path) -> None:
    """JSON can hold it, no file can."""
    patches = {FIRST: f"{SUITE[0].patch}\ud83d", SECOND: SUITE[1].patch}
    found = graded(write_run(tmp_path, patches))["results"]
    assert (found[FIRST]["status"], found[SECOND]["status"]) == ("error", "resolved")
    assert "no whole text" in found[FIRST]["detail"]


def test_a_version_may_be_empty(tmp_path: Path) -> None:
    """The harness wants the field to be there, and its Python parsers do not look at it."""
    (tmp_path / "odd.json").write_text(json.dumps([{**SUITE[0].raw, "version": ""}]))
    folder = write_run(
        tmp_path / "run", {FIRST: SUITE[0].patch}, dataset=str(tmp_path / "odd.json")
    )
    assert statuses(graded(folder)) == {FIRST: "resolved"}


def test_a_test_that_hangs_is_an_error_within_the_limit(tmp_path: Path) -> None:
    """The time limit ends the eval script, and the result says so."""
    instance = SUITE[0]
    raw = dict(instance.raw)
    raw["eval_script"] = raw["eval_script"].replace("python3 -m pytest", "sleep 60; true")
    (tmp_path / "slow.json").write_text(json.dumps([raw]))
    folder = write_run(
        tmp_path / "run",
        {instance.instance_id: instance.patch},
        dataset=str(tmp_path / "slow.json"),
    )
    result = graded(folder, time_limit_s=1)["results"][instance.instance_id]
    assert result["status"] == "error"
    assert "longer than 1 s" in result["detail"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_tests_that_run(tmp_path: Path, number: signal.Signals) -> None:
    """It does not wait for them, keeps the verdicts so far, and leaves no worktree."""
    raws = [dict(SUITE[0].raw), SUITE[1].raw]
    raws[0]["eval_script"] = raws[0]["eval_script"].replace("python3 -m pytest", "sleep 600; true")
    (tmp_path / "slow.json").write_text(json.dumps(raws))
    patches = {FIRST: SUITE[0].patch, SECOND: SUITE[1].patch}
    folder = write_run(tmp_path / "run", patches, dataset=str(tmp_path / "slow.json"))
    command = [sys.executable, "-m", "agentkv.evals.swebench.eval_command", str(folder)]
    process = subprocess.Popen(
        [*command, "--mode", "daemon-less", "--workers", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell that runs the tests in the background has them, and their children, ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert any("[1/2]" in line for line in process.stderr)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in said
    assert statuses(json.loads((folder / "eval.json").read_text())) == {SECOND: "resolved"}
    assert list((folder / "eval" / "daemon-less" / "worktrees").iterdir()) == []


def test_tests_see_neither_the_network_nor_files_of_the_host(tmp_path: Path) -> None:
    """What a patch brings along runs in the sandbox: a look outside would fail this instance."""
    instance = SUITE[0]
    (tmp_path / "secret").write_text("")
    looks = f"[ -e {tmp_path / 'secret'} ] || [ $(grep -c : /proc/net/dev) -gt 1 ] || touch /usr/x"
    raw = dict(instance.raw)
    raw["eval_script"] = raw["eval_script"].replace(
        "python3 -m pytest", f"if {looks}; then exit 1; fi; python3 -m pytest"
    )
    (tmp_path / "probe.json").write_text(json.dumps([raw]))
    folder = write_run(
        tmp_path / "run",
        {instance.instance_id: instance.patch},
        dataset=str(tmp_path / "probe.json"),
    )
    assert statuses(graded(folder)) == {instance.instance_id: "resolved"}


def test_verdicts_are_kept_until_the_patch_changes(tmp_path: Path) -> None:
    """A second evaluation grades only what is new: here the patch of one instance."""
    names = (FIRST, SECOND)
    gold = {name: patch for name, patch in gold_patches().items() if name in names}
    folder = write_run(tmp_path, gold)
    graded(folder)
    logs = {name: folder / "eval" / "daemon-less" / name / "report.json" for name in names}
    before = {name: path.stat().st_mtime_ns for name, path in logs.items()}
    write_run(folder, {**gold, SECOND: gold[SECOND].replace("default=0", "default=1")})
    found = statuses(graded(folder))
    assert logs[FIRST].stat().st_mtime_ns == before[FIRST]
    assert logs[SECOND].stat().st_mtime_ns > before[SECOND]
    assert found == {FIRST: "resolved", SECOND: "unresolved"}


def test_verdicts_are_of_the_instances_as_they_are(tmp_path: Path) -> None:
    """Other tests make another verdict, the patch being the same."""
    raw = {**SUITE[0].raw, "FAIL_TO_PASS": ["tests/test_csvline.py::test_that_is_not_there"]}
    (tmp_path / "wrong.json").write_text(json.dumps([raw]))
    dataset = str(tmp_path / "wrong.json")
    folder = write_run(tmp_path / "run", {FIRST: SUITE[0].patch}, dataset=dataset)
    assert statuses(graded(folder)) == {FIRST: "unresolved"}
    assert statuses(graded(folder, dataset="demo")) == {FIRST: "resolved"}


def test_an_instance_of_which_there_is_no_repository_is_an_error(tmp_path: Path) -> None:
    """Real instances cannot be graded without their images, and the result says so."""
    instance = replace(SUITE[0], raw={**SUITE[0].raw, "instance_id": "django__django-1"})
    name = "django__django-1"
    (tmp_path / "real.json").write_text(json.dumps([instance.raw]))
    folder = write_run(
        tmp_path / "run",
        {name: instance.patch},
        dataset=str(tmp_path / "real.json"),
    )
    result = graded(folder)["results"][name]
    assert result["status"] == "error"
    assert "container image" in result["detail"]


def test_instances_that_never_ran_are_errors(tmp_path: Path) -> None:
    """A run that was cut short still has a result for each of its instances."""
    folder = write_run(tmp_path, {FIRST: SUITE[0].patch}, instance_ids=[FIRST, SECOND])
    found = graded(folder)["results"]
    assert found[FIRST]["status"] == "resolved"
    assert found[SECOND]["status"] == "error"
    assert "not run" in found[SECOND]["detail"]


def test_an_agent_that_failed_is_an_error_with_its_reason(tmp_path: Path) -> None:
    """An exception of the agent is not an empty patch."""
    failed = row(FIRST, exit_status="error:ConnectionError", error="no answer from the server")
    found = graded(write_run(tmp_path, {FIRST: ""}, rows=[failed]))["results"]
    assert found[FIRST]["status"] == "error"
    assert "no answer from the server" in found[FIRST]["detail"]


def test_the_command_prints_one_json_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress goes to standard error, the counts to standard output."""
    folder = write_run(tmp_path, {FIRST: SUITE[0].patch})
    status = eval_command.main([str(folder), "--mode", "daemon-less"])
    captured = capsys.readouterr()
    assert status == 0
    assert json.loads(captured.out) == {
        "instances": 1,
        "resolved": 1,
        "unresolved": 0,
        "empty": 0,
        "error": 0,
        "policy": "continuum",
        "mode": "daemon-less",
        "run": str(folder),
    }


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the images that would be needed, and leaves the folder as it is."""
    folder = write_run(tmp_path, gold_patches())
    before = sorted(folder.iterdir())
    assert eval_command.main([str(folder), "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["to_grade"] == 6
    assert planned["images"][0] == "agentkv/swebench-suite-intervals:1.0"
    assert sorted(folder.iterdir()) == before


def test_a_folder_without_a_run_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Grading something else than a run ends with status 2 and says what was expected."""
    assert eval_command.main([str(tmp_path), "--mode", "daemon-less"]) == 2
    assert "run.json" in capsys.readouterr().err
