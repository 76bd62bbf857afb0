"""Facts about playing instances at once, without servers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import batch
from agentkv.evals.swebench.batch import Batch
from agentkv.evals.swebench.environments import EnvironmentPlan
from tests.evals.swebench.run_folders import SUITE

MODEL = {"model_name": "x", "model_class": "minisweagent.models.test_models.DeterministicModel"}


class NoEnvironments(EnvironmentPlan):
    """Fails to start any environment."""

    def start(self, *unused: Any) -> Any:
        raise ValueError("no such environment")


def played(
    tmp_path: Path, *, keep: Any = None, gone: Any = lambda: None, **how: Any
) -> tuple[Batch, list[dict[str, Any]], list[int]]:
    """Play all instances, each of which fails for want of an environment, in this way."""
    rows: list[dict[str, Any]] = []
    active: list[int] = []

    def clock() -> float:
        active.append(len(batch.playing))
        return 0.0

    batch = Batch(
        SUITE,
        tmp_path,
        {"model": {**MODEL, "outputs": []}, "agent": {}},
        NoEnvironments("docker", {}, tmp_path),
        clock=clock,
        keep=keep or rows.append,
        server_gone=gone,
    )
    batch.play(lambda name: f"{name}.r", **{"num_workers": 2, **how})
    return batch, rows, active


def test_a_failed_instance_does_not_end_the_batch(tmp_path: Path) -> None:
    """An error of one instance is in its row, and the next one is played, two at a time."""
    batch, rows, active = played(tmp_path)
    assert batch.stopped_because is None
    assert {row["instance_id"] for row in rows} == {one.instance_id for one in SUITE}
    assert {(row["exit_status"], row["error"]) for row in rows} == {
        ("error:ValueError", "no such environment")
    }
    assert {row["job_id"] for row in rows} == {f"{one.instance_id}.r" for one in SUITE}
    assert max(active) <= 2


def test_a_row_that_cannot_be_written_ends_the_batch(tmp_path: Path) -> None:
    """On a full disk the reason is named, and no further instance is spent."""

    def keep(row: dict[str, Any]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "rows")

    batch, _, active = played(tmp_path, keep=keep, num_workers=1)
    assert "could not be kept: [Errno 28] No space left" in str(batch.stopped_because)
    assert len(active) < 2 * len(SUITE)


def test_a_server_that_is_gone_ends_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances that wait are not started, and those that failed meanwhile have no row."""
    monkeypatch.setattr(batch, "CHECK_SERVER_EVERY_S", 0.0)
    starts_s = [0.0] + [3600.0] * (len(SUITE) - 1)
    stopped, rows, _ = played(
        tmp_path, gone=lambda: "the server is gone", num_workers=None, starts_s=starts_s
    )
    assert stopped.stopped_because == "the server is gone"
    assert rows == []


def test_given_starts_wait_for_no_worker(tmp_path: Path) -> None:
    """All instances start at their times, however many are under way."""
    _, rows, _ = played(tmp_path, num_workers=None, starts_s=[0.0] * len(SUITE))
    assert len(rows) == len(SUITE)
