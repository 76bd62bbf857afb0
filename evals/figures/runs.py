"""The runs to draw: read from disk, checked, and sorted into settings that may share a figure.

Two runs share a figure if only policy, load, seed and repeat differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..load.outcomes import RunOutcome
from ..load.run_files import RUN_FILE, TURNS_FILE, RunFilesError, read_runs
from ..load.summary import summarize
from .settings import Setting, has_endless_pool, pool_of, setting_of, slug
from .style import FigureError


@dataclass(frozen=True, slots=True)
class Run:
    """One run with its summary and the load it ran under; `load` is None where none was set."""

    outcome: RunOutcome
    summary: Mapping[str, Any]
    setting: Setting
    load: float | None

    @property
    def policy(self) -> str:
        return self.outcome.policy

    @property
    def pair(self) -> tuple[Any, ...]:
        """Runs of two policies with the same pair played the same jobs in the same round."""
        workload, metadata = self.outcome.workload, self.outcome.metadata
        return (self.load, workload.get("seed"), metadata.get("repeat"))

    @property
    def pool(self) -> str | None:
        """Blocks of the KV pool; None where it has no limit or is not known."""
        return pool_of(self.outcome)

    @property
    def commit(self) -> str | None:
        commit = self.outcome.metadata.get("commit")
        return None if commit is None else str(commit)


@dataclass(frozen=True, slots=True)
class Group:
    """All runs of one setting, and the name of its files."""

    setting: Setting
    slug: str
    runs: tuple[Run, ...]

    @property
    def loads(self) -> list[float]:
        return sorted({run.load for run in self.runs if run.load is not None})

    def at(self, load: float | None) -> Group:
        """The runs under one load."""
        return replace(self, runs=tuple(run for run in self.runs if run.load == load))


def load_runs(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """The runs below these paths that have a finished job, and a line on each that has none.

    Raises FigureError for rows that are missing or misshapen, and if no run is left.
    """
    runs, left_out = [], []
    for path in map(Path, paths):
        for outcome in _read(path):
            run = _run(path, outcome)
            if run.summary["completed"]:
                runs.append(run)
            else:
                left_out.append(
                    f"{path}: {run.policy}: none of its {len(outcome.jobs)} jobs is done, left out"
                )
    if not runs:
        raise FigureError("; ".join(left_out) or "no rows given")
    return runs, left_out


def _read(path: Path) -> list[RunOutcome]:
    if path.is_file() and path.name not in (TURNS_FILE, RUN_FILE):
        raise FigureError(f"{path}: not a run: give its folder, {TURNS_FILE} or {RUN_FILE}")
    try:
        return read_runs([path])
    except (RunFilesError, OSError) as error:
        raise FigureError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise FigureError(f"{path}: rows of another shape than {TURNS_FILE}: {reason}") from error


def _run(path: Path, outcome: RunOutcome) -> Run:
    try:
        _check_times(outcome)
        summary = summarize(outcome)
        setting = setting_of(outcome)
        load = float(outcome.workload[setting.load_kind]) if setting.load_kind else None
    except (TypeError, ValueError, AttributeError) as error:
        raise FigureError(
            f"{path}: {outcome.policy}: values that cannot be drawn: {error}"
        ) from error
    return Run(outcome, summary, setting, load)


def _check_times(outcome: RunOutcome) -> None:
    for job in outcome.jobs:
        if not job.turns:
            raise ValueError(f"job {job.job_id!r} has no turn")
        times = [job.arrived_s, job.ended_s]
        times += [time for turn in job.turns for time in (turn.sent_s, turn.ended_s)]
        if not all(math.isfinite(time) for time in times):
            raise ValueError(f"job {job.job_id!r} has a time that is no finite number")


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by setting, named after the GPU, and after what else differs where that is not enough.

    Runs on a pool without limit join every setting that differs in nothing else.
    """
    by_setting: dict[Setting, list[Run]] = {}
    for run in runs:
        if not has_endless_pool(run.policy):
            by_setting.setdefault(run.setting, []).append(run)
    for run in runs:
        if has_endless_pool(run.policy):
            alike = [s for s in by_setting if replace(s, blocks=None) == run.setting]
            for setting in alike or [run.setting]:
                by_setting.setdefault(setting, []).append(run)
    return [
        Group(setting, slug(setting, list(by_setting)), tuple(its_runs))
        for setting, its_runs in by_setting.items()
    ]
