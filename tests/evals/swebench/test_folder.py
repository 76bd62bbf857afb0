"""Facts about a run's folder: what a kill leaves behind can be read and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import AgentKVError
from agentkv.evals.swebench.folder import RunFolder, read_run
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import PATCHES, write_run


def row(name: str, status: str = "Submitted") -> dict[str, Any]:
    return {"instance_id": name, "exit_status": status, "error": None}


def test_a_run_is_overwritten_only_with_force(tmp_path: Path) -> None:
    """Without --resume the run stays; --force leaves nothing of it, its evaluation included."""
    with RunFolder(tmp_path) as folder:
        folder.write(run_id="old")
        folder.add(row("a-1"))
    (tmp_path / "a-1").mkdir()
    for name in ("eval.json", "preds.json", "a-1/a-1.traj.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(SwebenchError, match=r"run.json exists.*--resume.*--force"):
        RunFolder(tmp_path)
    with RunFolder(tmp_path, force=True) as folder:
        assert (folder.rows, folder.document) == ({}, {})
    assert [path.name for path in tmp_path.rglob("*")] == [".lock"]


def test_a_resumed_run_keeps_what_is_finished(tmp_path: Path) -> None:
    """Earlier rows and conditions are kept, and the last row of an instance counts."""
    with RunFolder(tmp_path) as folder:
        folder.write(run_id="r")
        folder.add(row("a-1"))
        folder.add(row("a-2", "error:OSError"))
    with RunFolder(tmp_path, resume=True) as folder:
        assert folder.document == {"run_id": "r"}
        assert folder.finished == {"a-1"}
        folder.add(row("a-2"))
        assert folder.finished == {"a-1", "a-2"}
    assert len((tmp_path / "instances.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("status", "is_finished"),
    [
        ("LimitsExceeded", True),
        ("error:SwebenchError", False),
        ("error:APIConnectionError", False),
        ("error:ContextWindowExceededError", True),
    ],
)
def test_errors_are_tried_again(tmp_path: Path, status: str, is_finished: bool) -> None:
    """A resumed run repeats every error but one that would only come again."""
    with RunFolder(tmp_path) as folder:
        folder.add(row("a-1", status))
        assert ("a-1" in folder.finished) is is_finished


@pytest.mark.parametrize("cut", [1, 15, 50])
def test_what_a_kill_left_is_dropped(tmp_path: Path, cut: int) -> None:
    """A resumed run drops half a line and the copies of repositories that a kill left."""
    with RunFolder(tmp_path) as folder:
        folder.add(row("a-1"))
        folder.add(row("a-2"))
    path = tmp_path / "instances.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    (tmp_path / "worktrees" / "a-1.x").mkdir(parents=True)
    with RunFolder(tmp_path, resume=True) as folder:
        assert folder.finished == {"a-1"}
        assert not (tmp_path / "worktrees").exists()
        folder.add(row("a-3"))
    names = [json.loads(line)["instance_id"] for line in path.read_text().splitlines()]
    assert names == ["a-1", "a-3"]


def test_predictions_cut_by_a_kill_come_from_the_trajectories(tmp_path: Path) -> None:
    """mini-swe-agent writes preds.json in place, so a resumed run rebuilds a damaged one."""
    with RunFolder(tmp_path) as folder:
        folder.write(model="m")
        for name in ("a-1", "a-2"):
            folder.add(row(name))
    (tmp_path / "a-1").mkdir()
    (tmp_path / "a-1" / "a-1.traj.json").write_text('{"info": {"submission": "a patch"}}')
    (tmp_path / "preds.json").write_text('{"a-1": {"model_na')
    with RunFolder(tmp_path, resume=True):
        found = json.loads((tmp_path / "preds.json").read_text())
    assert {name: entry["model_patch"] for name, entry in found.items()} == {
        "a-1": "a patch",
        "a-2": "",
    }
    assert found["a-1"]["model_name_or_path"] == "openai/m"


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    """A second run in the same folder is refused while the first is at work."""
    with RunFolder(tmp_path), pytest.raises(SwebenchError, match="another run is at work"):
        RunFolder(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": null}', "no list of names"),
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": ["a", "a"]}', "each once"),
        ("preds.json", '{"a-1": "one"}', "no prediction of a-1"),
        ("preds.json", "{}", "no prediction of a-1"),
        ("instances.jsonl", '{"instance_id": "a-1"}\nwhat\n', "line 2"),
        ("instances.jsonl", "[]\n", "no row of an instance"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    """A damaged file is named; above all a lost patch is not taken for an empty one."""
    folder = write_run(tmp_path, PATCHES)
    (folder / name).write_text(content)
    with pytest.raises(AgentKVError, match=f"{name}.*{words}"):
        read_run(folder)
