"""Facts about a run's folder: what a kill leaves behind can be read and gone on with."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench.errors import SwebenchError
from agentkv.evals.swebench.run_folder import RunFolder


def row(name: str, status: str = "Submitted", **fields: Any) -> dict[str, Any]:
    return {"instance_id": name, "exit_status": status, "error": None, **fields}


def add(folder: RunFolder, name: str, status: str = "Submitted") -> None:
    folder.add(row(name, status), patch="a patch", model="m", trajectory={"messages": []})


def test_all_files_of_an_instance_are_there(tmp_path: Path) -> None:
    """Row, prediction in the harness's shape, trajectory under mini-swe-agent's name."""
    with RunFolder(tmp_path) as folder:
        add(folder, "a-1")
    assert json.loads((tmp_path / "instances.jsonl").read_text()) == row("a-1")
    assert json.loads((tmp_path / "preds.json").read_text()) == {
        "a-1": {"model_name_or_path": "m", "instance_id": "a-1", "model_patch": "a patch"}
    }
    assert json.loads((tmp_path / "trajectories" / "a-1.traj.json").read_text()) == {"messages": []}


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    """Only --resume or --force touches what is there."""
    with RunFolder(tmp_path) as folder:
        add(folder, "a-1")
    with pytest.raises(SwebenchError, match=r"instances.jsonl exists.*--resume.*--force"):
        RunFolder(tmp_path)


def test_force_begins_anew(tmp_path: Path) -> None:
    """Nothing of the old run is left, its evaluation included."""
    with RunFolder(tmp_path) as folder:
        folder.write(run_id="old")
        add(folder, "a-1")
    (tmp_path / "eval.json").write_text("{}")
    with RunFolder(tmp_path, force=True) as folder:
        assert (folder.rows, folder.document) == ({}, {})
    assert [path.name for path in tmp_path.rglob("*") if path.name != ".lock"] == ["trajectories"]


def test_resuming_keeps_what_is_finished(tmp_path: Path) -> None:
    """Predictions and rows of before stand beside the new ones."""
    with RunFolder(tmp_path) as folder:
        folder.write(run_id="r")
        add(folder, "a-1")
    with RunFolder(tmp_path, resume=True) as folder:
        assert folder.document == {"run_id": "r"}
        assert folder.finished == {"a-1"}
        add(folder, "a-2")
    assert set(json.loads((tmp_path / "preds.json").read_text())) == {"a-1", "a-2"}


@pytest.mark.parametrize(
    ("status", "is_finished"),
    [
        ("Submitted", True),
        ("LimitsExceeded", True),
        ("error:SwebenchError", False),
        ("error:APIConnectionError", False),
        ("error:ContextWindowExceededError", True),
    ],
)
def test_errors_are_tried_again(tmp_path: Path, status: str, is_finished: bool) -> None:
    """But not one that would only come again."""
    with RunFolder(tmp_path) as folder:
        add(folder, "a-1", status)
        assert ("a-1" in folder.finished) is is_finished


def test_the_last_row_of_an_instance_counts(tmp_path: Path) -> None:
    """After a second attempt."""
    with RunFolder(tmp_path) as folder:
        add(folder, "a-1", "error:OSError")
        add(folder, "a-1", "Submitted")
    with RunFolder(tmp_path, resume=True) as folder:
        assert folder.rows["a-1"]["exit_status"] == "Submitted"


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_row_cut_in_the_middle_is_gone(tmp_path: Path, cut: int) -> None:
    """What a kill leaves of a line never damages the next one."""
    with RunFolder(tmp_path) as folder:
        add(folder, "a-1")
        add(folder, "a-2")
    path = tmp_path / "instances.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    with RunFolder(tmp_path, resume=True) as folder:
        assert folder.finished == {"a-1"}
        add(folder, "a-3")
    names = [json.loads(line)["instance_id"] for line in path.read_text().splitlines()]
    assert names == ["a-1", "a-3"]


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    """The second one is told."""
    with RunFolder(tmp_path), pytest.raises(SwebenchError, match="another run is at work"):
        RunFolder(tmp_path).__enter__()


def test_a_full_disk_is_an_error_and_no_half_row(tmp_path: Path) -> None:
    """The instance does not count as finished."""
    with RunFolder(tmp_path) as folder:
        (tmp_path / "instances.jsonl").symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left") as caught:
            add(folder, "a-1")
        assert caught.value.errno == errno.ENOSPC
        assert folder.finished == set()
        (tmp_path / "instances.jsonl").unlink()


def test_damaged_rows_are_named(tmp_path: Path) -> None:
    """With file and line."""
    (tmp_path / "instances.jsonl").write_text('{"instance_id": "a-1"}\nwhat\n')
    with pytest.raises(SwebenchError, match=r"instances.jsonl: line 2"):
        RunFolder(tmp_path, resume=True).__enter__()


def test_worktrees_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    """They are the only thing that nobody wants to keep."""
    (tmp_path / "worktrees" / "a-1.x").mkdir(parents=True)
    with RunFolder(tmp_path):
        assert not (tmp_path / "worktrees").exists()
