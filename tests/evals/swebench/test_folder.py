"""Facts about a run's folder: what a kill leaves behind can be read and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkv.errors import AgentKVError
from agentkv.evals.swebench.folder import open_run, read_run
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import PATCHES, row, write_run


def test_a_run_is_overwritten_only_with_force(tmp_path: Path) -> None:
    """Without --resume the run stays; --force leaves nothing of it, its evaluation included."""
    with open_run(tmp_path) as folder:
        folder.write(run_id="old")
        folder.add(row("a-1"))
    (tmp_path / "a-1").mkdir()
    for name in ("eval.json", "preds.json", "a-1/a-1.traj.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(SwebenchError, match=r"run.json exists.*--resume.*--force"):
        open_run(tmp_path).__enter__()
    with open_run(tmp_path, force=True) as folder:
        assert (folder.rows, folder.document) == ({}, {})
    assert [path.name for path in tmp_path.rglob("*")] == [".lock"]


def test_a_resumed_run_keeps_what_is_finished(tmp_path: Path) -> None:
    """Rows and conditions stay, the last row counts, and errors that may not recur are repeated."""
    statuses = ("Submitted", "error:OSError", "error:ContextWindowExceededError", "LimitsExceeded")
    with open_run(tmp_path) as folder:
        folder.write(run_id="r")
        for name, status in zip(PATCHES, statuses, strict=True):
            folder.add(row(name, exit_status=status))
    with open_run(tmp_path, resume=True) as folder:
        assert folder.document == {"run_id": "r"}
        assert folder.finished == {"a-1", "a-3", "a-4"}
        folder.add(row("a-2"))
        assert folder.finished == set(PATCHES)
    assert len((tmp_path / "instances.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("cut", [1, 15, 50])
def test_what_a_kill_left_is_dropped(tmp_path: Path, cut: int) -> None:
    """A resumed run drops half a line and the copies of repositories that a kill left."""
    with open_run(tmp_path) as folder:
        folder.add(row("a-1"))
        folder.add(row("a-2"))
    path = tmp_path / "instances.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    (tmp_path / "worktrees" / "a-1.x").mkdir(parents=True)
    with open_run(tmp_path, resume=True) as folder:
        assert folder.finished == {"a-1"}
        assert not (tmp_path / "worktrees").exists()
        folder.add(row("a-3"))
    names = [json.loads(line)["instance_id"] for line in path.read_text().splitlines()]
    assert names == ["a-1", "a-3"]


def test_predictions_cut_by_a_kill_come_from_the_trajectories(tmp_path: Path) -> None:
    """mini-swe-agent writes preds.json in place, so a resumed run rebuilds a damaged one."""
    with open_run(tmp_path) as folder:
        folder.write(model="m")
        for name in ("a-1", "a-2"):
            folder.add(row(name))
    (tmp_path / "a-1").mkdir()
    (tmp_path / "a-1" / "a-1.traj.json").write_text('{"info": {"submission": "a patch"}}')
    (tmp_path / "preds.json").write_text('{"a-1": {"model_na')
    with open_run(tmp_path, resume=True):
        found = json.loads((tmp_path / "preds.json").read_text())
    assert {name: entry["model_patch"] for name, entry in found.items()} == {
        "a-1": "a patch",
        "a-2": "",
    }
    assert found["a-1"]["model_name_or_path"] == "openai/m"


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    """A second run in the same folder is refused while the first is at work."""
    with open_run(tmp_path), pytest.raises(SwebenchError, match="another run is at work"):
        open_run(tmp_path).__enter__()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", None, "is this the --out"),
        ("run.json", "[]", "no JSON object"),
        ("run.json", '{"run_id": "r"}', "lacks policy, instance_ids"),
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": null}', "no list of names"),
        ("run.json", '{"run_id": "r", "policy": "p", "instance_ids": ["a", "a"]}', "each once"),
        ("preds.json", '{"a-1": "one"}', "no prediction of a-1"),
        ("preds.json", "{}", "no prediction of a-1"),
        ("instances.jsonl", '{"instance_id": "a-1"}\nwhat\n', "line 1 lacks start_s, end_s"),
        ("instances.jsonl", "[]\n", "line 1 is no JSON object"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    """A damaged file is named; above all a lost patch is not taken for an empty one."""
    folder = write_run(tmp_path, PATCHES)
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(AgentKVError, match=f"{name}.*{words}"):
        read_run(folder)
