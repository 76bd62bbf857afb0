"""Facts about playing instances at once, without servers."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import batch
from agentkv.evals.swebench.batch import Batch, BatchProgress, is_disk_full
from agentkv.evals.swebench.environments import EnvironmentPlan
from agentkv.evals.swebench.instances import load_instances

SUITE = load_instances("demo")
MODEL = {"model_name": "x", "model_class": "minisweagent.models.test_models.DeterministicModel"}


class NoEnvironments(EnvironmentPlan):
    """Fails to start any environment."""

    def start(self, *unused: Any) -> Any:
        raise ValueError("no such environment")


def played(
    tmp_path: Path, *, keep: Any = None, gone: Any = lambda: None, **how: Any
) -> tuple[BatchProgress, list[dict[str, Any]], list[int]]:
    """Play all instances, each of which fails for want of an environment, in this way."""
    progress = BatchProgress(len(SUITE))
    rows: list[dict[str, Any]] = []
    active: list[int] = []

    def clock() -> float:
        active.append(len(progress.playing) + 1)
        return 0.0

    Batch(
        tmp_path,
        {"model": {**MODEL, "outputs": []}, "agent": {}},
        NoEnvironments("docker", {}, tmp_path),
        progress,
        clock=clock,
        keep=keep or rows.append,
        server_gone=gone,
    ).play(SUITE, lambda name: f"{name}.r", **{"num_workers": 2, **how})
    return progress, rows, active


def test_a_failed_instance_does_not_end_the_batch(tmp_path: Path) -> None:
    """An error of one instance is in its row, and the next one is played, two at a time."""
    progress, rows, active = played(tmp_path)
    assert progress.stopped_because is None
    assert {row["instance_id"] for row in rows} == {one.instance_id for one in SUITE}
    assert {(row["exit_status"], row["error"]) for row in rows} == {
        ("error:ValueError", "no such environment")
    }
    assert {row["job_id"] for row in rows} == {f"{one.instance_id}.r" for one in SUITE}
    assert max(active) <= 3  # the clock is read before an instance counts, and after


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "rows"), "the disk is full: "),
        (PermissionError(errno.EACCES, "Permission denied", "rows"), "could not be kept"),
    ],
)
def test_a_row_that_cannot_be_written_ends_the_batch(
    tmp_path: Path, error: OSError, words: str
) -> None:
    """The reason is named, and no further instance is spent on it."""

    def keep(row: dict[str, Any]) -> None:
        raise error

    progress, _, active = played(tmp_path, keep=keep, num_workers=1)
    assert words in str(progress.stopped_because)
    assert str(error) in str(progress.stopped_because)
    assert len(active) < 2 * len(SUITE)


def test_a_server_that_is_gone_ends_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instances that wait are not started, and those that failed meanwhile have no row."""
    monkeypatch.setattr(batch, "CHECK_SERVER_EVERY_S", 0.0)
    starts_s = [0.0] + [3600.0] * (len(SUITE) - 1)
    progress, rows, _ = played(
        tmp_path, gone=lambda: "the server is gone", num_workers=None, starts_s=starts_s
    )
    assert progress.stopped_because == "the server is gone"
    assert rows == []


def test_given_starts_wait_for_no_worker(tmp_path: Path) -> None:
    """All instances start at their times, whatever number is under way."""
    _, rows, _ = played(tmp_path, num_workers=None, starts_s=[0.0] * len(SUITE))
    assert len(rows) == len(SUITE)


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("git fetch: fatal: write error: No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_a_full_disk_is_recognized(error: Exception, is_full: bool) -> None:
    """Also in the words of a program, and as the cause of another error."""
    wrapped = ValueError("while saving")
    wrapped.__cause__ = error
    assert (is_disk_full(error), is_disk_full(wrapped)) == (is_full, is_full)
