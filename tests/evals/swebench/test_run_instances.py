"""Facts about playing instances side by side, without servers or agents."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentkv.evals.swebench.environments import EnvironmentPlan
from agentkv.evals.swebench.instance_run import AgentSetup, PlayedInstance, is_disk_full
from agentkv.evals.swebench.instance_state import InstanceState
from agentkv.evals.swebench.instances import load_instances
from agentkv.evals.swebench.run_instances import InstanceRunner, RunProgress

SUITE = load_instances("demo")


class Ticks:
    """Counts how many are at work each time that someone looks."""

    def __init__(self, states: Sequence[InstanceState]) -> None:
        self._states = states
        self.most_active = 0

    def tick(self) -> None:
        self.most_active = max(self.most_active, sum(state.is_active for state in self._states))


def played(**changes: Any) -> tuple[RunProgress, list[PlayedInstance], Ticks]:
    """All instances, which fail at once for want of a model class, under these conditions."""
    progress = RunProgress([InstanceState(one.instance_id) for one in SUITE])
    setup = AgentSetup(
        config={"agent": {}},
        model={"model_name": "x", "model_class": "no.such.Model"},
        environments=EnvironmentPlan("docker", {}, Path("unused")),
        clock=lambda: 0.0,
        is_stopped=lambda: progress.is_stopped,
    )
    kept: list[PlayedInstance] = []
    ticks = Ticks(progress.states)
    options: dict[str, Any] = {
        "job_id": lambda name: f"{name}.r",
        "keep": kept.append,
        "server_gone": lambda: None,
        "display": ticks,
        "num_workers": 2,
        "starts_s": None,
    }
    InstanceRunner(setup, SUITE, progress, **(options | changes)).run()
    return progress, kept, ticks


def test_every_failure_is_kept() -> None:
    """An error of one instance is its result, and the next one is played."""
    progress, kept, _ = played()
    assert progress.stopped_because is None
    assert {one.row["instance_id"] for one in kept} == {one.instance_id for one in SUITE}
    assert {one.row["exit_status"] for one in kept} == {"error:ValueError"}
    assert all("no.such.Model" in one.row["error"] for one in kept)


def test_no_more_at_once_than_workers() -> None:
    """However quickly they end."""
    _, _, ticks = played(num_workers=2)
    assert ticks.most_active <= 2


def test_a_full_disk_stops_the_run() -> None:
    """It is named, and no further instance is spent on it."""

    def keep(one: PlayedInstance) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "preds.json")

    progress, _, _ = played(keep=keep, num_workers=1)
    assert progress.stopped_because is not None
    assert progress.stopped_because.startswith("the disk is full: ")
    assert "preds.json" in progress.stopped_because
    assert progress.states[0].status == "not kept"
    assert progress.states[-1].status == "waiting"


def test_a_folder_that_cannot_be_written_stops_the_run() -> None:
    """With the system's words."""

    def keep(one: PlayedInstance) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "preds.json")

    progress, _, _ = played(keep=keep)
    assert "could not be kept" in str(progress.stopped_because)
    assert "Permission denied" in str(progress.stopped_because)


def test_a_server_that_is_gone_stops_the_run() -> None:
    """The reason is the server's; those that wait are not started."""
    progress, kept, _ = played(
        server_gone=lambda: "the server is gone",
        check_server_every_s=0.0,
        starts_s=[0.0] + [3600.0] * 5,
        num_workers=None,
    )
    assert progress.stopped_because == "the server is gone"
    assert kept == []  # the one that failed meanwhile is to be played again


def test_starts_are_kept_to() -> None:
    """In an open loop nothing waits for a worker."""
    _, kept, _ = played(starts_s=[0.0] * 6, num_workers=None)
    assert len(kept) == 6


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (RuntimeError("git fetch: fatal: write error: No space left on device"), True),
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_what_a_full_disk_looks_like(error: Exception, is_full: bool) -> None:
    """Also in the words of a program, and behind another error."""
    wrapped = ValueError("while saving")
    wrapped.__cause__ = error
    assert (is_disk_full(error), is_disk_full(wrapped)) == (is_full, is_full)
