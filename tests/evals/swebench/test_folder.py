"""Facts about a run's folder: what a kill leaves behind can be read and gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkv.errors import AgentKVError
from agentkv.evals.rows import RowFile
from agentkv.evals.swebench.folder import ROWS_FILE, finished, open_run, read_instances, read_run
from agentkv.evals.swebench.instances import SwebenchError
from tests.evals.swebench.run_folders import PATCHES, row, write_run


def ended(folder: Path, *rows: dict[str, Any]) -> None:
    """Append rows as a batch does."""
    with RowFile(folder / ROWS_FILE, append=True) as file:
        for one in rows:
            file.add(one)


def test_a_run_is_overwritten_only_with_force(tmp_path: Path) -> None:
    """Without --resume the run stays; --force leaves nothing of it, its evaluation included."""
    (tmp_path / "a-1").mkdir()
    for name in ("run.json", "instances.jsonl", "eval.json", "preds.json", "a-1/a-1.traj.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(SwebenchError, match=r"run.json exists.*--resume.*--force"):
        open_run(tmp_path).__enter__()
    with open_run(tmp_path, force=True):
        assert [path.name for path in tmp_path.rglob("*")] == [".lock"]


@pytest.mark.parametrize("cut", [1, 15, 50])
def test_a_resumed_run_keeps_what_is_finished(tmp_path: Path, cut: int) -> None:
    """The last row counts; half a line, clones and errors that may not recur are dropped."""
    statuses = ("Submitted", "error:OSError", "error:ContextWindowExceededError", "LimitsExceeded")
    rows = [row(name, exit_status=status) for name, status in zip(PATCHES, statuses, strict=True)]
    ended(tmp_path, *rows, row("a-5"))
    path = tmp_path / ROWS_FILE
    path.write_bytes(path.read_bytes()[:-cut])
    (tmp_path / "worktrees" / "a-1.x").mkdir(parents=True)
    with open_run(tmp_path, resume=True):
        assert not (tmp_path / "worktrees").exists()
        assert set(finished(tmp_path)) == {"a-1", "a-3", "a-4"}
        ended(tmp_path, row("a-2"))
    assert [json.loads(line)["instance_id"] for line in path.read_text().splitlines()] == [
        *PATCHES,
        "a-2",
    ]
    assert read_instances(tmp_path)["a-2"]["exit_status"] == "Submitted"


def test_a_resumed_run_takes_its_patches_from_the_trajectories(tmp_path: Path) -> None:
    """mini-swe-agent writes preds.json in place, where a kill may have cut it."""
    ended(tmp_path, row("a-1"), row("a-2"), row("a-3", exit_status="error:OSError"))
    (tmp_path / "a-1").mkdir()
    config = {"model": {"model_name": "openai/m"}}
    info = {"info": {"submission": "a patch", "config": config}}
    (tmp_path / "a-1" / "a-1.traj.json").write_text(json.dumps(info))
    (tmp_path / "preds.json").write_text('{"a-1": {"model_na')
    with open_run(tmp_path, resume=True):
        found = json.loads((tmp_path / "preds.json").read_text())
    patches = {name: entry["model_patch"] for name, entry in found.items()}
    assert patches == {"a-1": "a patch", "a-2": ""}
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
