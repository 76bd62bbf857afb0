"""Facts about playing instances at once, without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench import batch
from agentkv.evals.swebench.batch import Batch
from agentkv.evals.swebench.environments import EnvironmentPlan
from agentkv.evals.swebench.folder import open_run
from tests.evals.swebench.run_folders import SUITE

MODEL = {"model_name": "x", "model_class": "minisweagent.models.test_models.DeterministicModel"}


def played(
    tmp_path: Path, *, gone: Any = lambda: None, **how: Any
) -> tuple[Batch, list[dict[str, Any]], list[int]]:
    """Play all instances, each of which fails for want of a repository, in this way."""
    active: list[int] = []

    def clock() -> float:
        active.append(len(batch.playing))
        return 0.0

    with open_run(tmp_path, resume=True) as folder:
        config = {"model": {**MODEL, "outputs": []}, "agent": {}}
        environments = EnvironmentPlan("local", {}, tmp_path)
        batch = Batch(SUITE, folder, config, environments, clock=clock, server_gone=gone)
        batch.play(".r", **{"num_workers": 2, **how})
    return batch, list(folder.rows.values()), active


@pytest.mark.parametrize(
    "how", [{"num_workers": 2}, {"num_workers": None, "starts_s": [0.0] * len(SUITE)}]
)
def test_a_failed_instance_does_not_end_the_batch(tmp_path: Path, how: dict[str, Any]) -> None:
    """An error of one instance is in its row, and the others are played, two at a time or all."""
    batch, rows, active = played(tmp_path, **how)
    assert batch.stopped_because is None
    assert {row["job_id"] for row in rows} == {f"{one.instance_id}.r" for one in SUITE}
    assert {row["exit_status"] for row in rows} == {"error:KeyError"}
    assert {row["error"] for row in rows} == {f"'{one.instance_id}'" for one in SUITE}
    assert max(active) <= (how["num_workers"] or len(SUITE))


def test_a_row_that_cannot_be_written_ends_the_batch(tmp_path: Path) -> None:
    """The reason is named, and no further instance is spent."""
    (tmp_path / "instances.jsonl").symlink_to(tmp_path / "missing" / "rows")
    batch, _, active = played(tmp_path, num_workers=1)
    assert "could not be kept: [Errno 2] No such file" in str(batch.stopped_because)
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
