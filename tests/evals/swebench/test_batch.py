"""Facts about playing instances at once, without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import batch
from agentkv.evals.swebench.batch import Batch
from agentkv.evals.swebench.folder import read_instances
from tests.evals.swebench.run_folders import SUITE

MODEL = {"model_name": "x", "model_class": "minisweagent.models.test_models.DeterministicModel"}


def played(folder: Path, *, gone: Any = lambda: None) -> Batch:
    """Play all instances, each of which fails for want of a repository, two at a time."""
    config = {"model": {**MODEL, "outputs": [], "agentkv_run_id": "r"}, "agent": {}}
    batch = Batch(SUITE, folder, config, "bubblewrap", clock=lambda: 0.0, server_gone=gone)
    batch.play(2)
    return batch


@pytest.fixture(autouse=True)
def _plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """mini-swe-agent's scripted model takes no run id."""
    made = batch.swebench.get_model

    def get_model(*, config: dict[str, Any]) -> Any:
        return made(config={k: v for k, v in config.items() if k != "agentkv_run_id"})

    monkeypatch.setattr(batch.swebench, "get_model", get_model)
    monkeypatch.setattr(batch, "substitute", lambda **others: _set(monkeypatch, others))


def _set(monkeypatch: pytest.MonkeyPatch, others: dict[str, Any]) -> None:
    for name, other in others.items():
        monkeypatch.setattr(batch.swebench, name, other)


def test_a_failed_instance_does_not_end_the_batch(tmp_path: Path) -> None:
    """An error of one instance is in its row, and the others are played."""
    assert played(tmp_path).stopped_because is None
    rows = read_instances(tmp_path)
    assert set(rows) == {one["instance_id"] for one in SUITE}
    for name, row in rows.items():
        assert (row["job_id"], row["exit_status"]) == (f"{name}.r", "error:SwebenchError")
        assert "lies in its image" in row["error"]


def test_a_row_that_cannot_be_written_ends_the_batch(tmp_path: Path) -> None:
    """The reason is named, and nothing counts as played."""
    (tmp_path / "instances.jsonl").symlink_to(tmp_path / "missing" / "rows")
    assert "could not be kept: [Errno 2] No such file" in str(played(tmp_path).stopped_because)


def test_a_server_that_is_gone_ends_the_batch(tmp_path: Path) -> None:
    """Instances that wait are not started, and those that failed meanwhile have no row."""
    stopped = played(tmp_path, gone=lambda: "the server is gone")
    assert stopped.stopped_because == "the server is gone"
    assert read_instances(tmp_path) == {}
