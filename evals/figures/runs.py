"""The runs to draw: read from disk, checked, and sorted into settings that may share a figure.

Two runs share a figure if only policy, load, seed and repeat differ.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from ..load.outcomes import RunOutcome
from ..load.run_files import RUN_FILE, TURNS_FILE, RunFilesError, read_runs
from ..load.summary import summarize
from .style import FigureError

LOADS = {"jps": "jobs per second", "concurrency": "jobs at once"}
"""What can be swept, with the label of its axis."""
_BLOCK_FLAGS = ("blocks", "num_gpu_blocks_override")
_LIMITS = {
    "num_gpus": "{} GPUs",
    "turns": "{} turns a job at most",
    "trace": "trace {}",
    "token_scale": "tokens x {}",
    "max_context_tokens": "contexts to {} tokens",
    "max_num_seqs": "{} turns at once",
}
"""Flags that change the jobs or the machine, in words."""
_BLOCK_FACTS = ("num_blocks", "num_gpu_blocks")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs of one figure have in common; None where the rows do not say."""

    gpu: str
    model: str | None
    workload: str | None
    tools: str | None
    load_kind: str | None
    """A key of LOADS."""
    blocks: str | None
    """Blocks of the KV pool as asked for by flag; None: as many as the memory holds."""
    is_simulated: bool = False
    limits: tuple[str, ...] = ()
    """What _LIMITS says of the run."""


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
        """Blocks of the KV pool: as asked for, else as the server or the simulator says."""
        if self.setting.blocks is not None or "@" in self.policy:
            return self.setting.blocks
        return _text(_find(self.outcome, _BLOCK_FACTS))

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
        kind, load = _load(outcome)
    except (TypeError, ValueError, AttributeError) as error:
        raise FigureError(
            f"{path}: {outcome.policy}: values that cannot be drawn: {error}"
        ) from error
    setting = Setting(
        gpu=_name(_find(outcome, ("gpu", "device"))) or "server",
        model=_name(_find(outcome, ("model",))),
        workload=_name(_find(outcome, ("name", "workload"))),
        tools=_name(_find(outcome, ("tools",))),
        load_kind=kind,
        blocks=None if "@" in outcome.policy else _text(_find(outcome, _BLOCK_FLAGS)),
        is_simulated=bool(outcome.metadata.get("is_simulated")),
        limits=tuple(_limits(outcome)),
    )
    return Run(outcome, summary, setting, load)


def _check_times(outcome: RunOutcome) -> None:
    for job in outcome.jobs:
        if not job.turns:
            raise ValueError(f"job {job.job_id!r} has no turn")
        times = [job.arrived_s, job.ended_s]
        times += [time for turn in job.turns for time in (turn.sent_s, turn.ended_s)]
        if not all(math.isfinite(time) for time in times):
            raise ValueError(f"job {job.job_id!r} has a time that is no finite number")


def _load(outcome: RunOutcome) -> tuple[str | None, float | None]:
    for kind in LOADS:
        value = outcome.workload.get(kind)
        if value is not None:
            return kind, float(value)
    return None, None


def _find(outcome: RunOutcome, names: Iterable[str]) -> Any:
    """The first of these names that says something, in the places where runs keep their facts."""
    metadata, server = outcome.metadata, outcome.server
    places: list[Any] = [outcome.workload, metadata.get("config"), metadata, server]
    places += [metadata.get("server_info"), server.get("before")]
    for name in names:
        for place in places:
            value = place.get(name) if isinstance(place, Mapping) else None
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return value
    return None


def _limits(outcome: RunOutcome) -> Iterator[str]:
    for name, words in _LIMITS.items():
        value = _find(outcome, (name,))
        if value is not None and (name, value) not in (("num_gpus", 1), ("token_scale", 1.0)):
            yield words.format(_name(value))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _name(value: Any) -> str | None:
    """A name; of a file (a calibrated profile, a trace, a model's folder) its own name."""
    text = _text(value)
    return Path(text).stem if text and ("/" in text or text.endswith(".json")) else text


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by setting, named after the GPU, and after what else differs where that is not enough.

    Runs on a pool without limit join every setting that differs in nothing else.
    """
    by_setting: dict[Setting, list[Run]] = {}
    for run in runs:
        if "@" not in run.policy:
            by_setting.setdefault(run.setting, []).append(run)
    for run in runs:
        if "@" in run.policy:
            alike = [s for s in by_setting if replace(s, blocks=None) == run.setting]
            for setting in alike or [run.setting]:
                by_setting.setdefault(setting, []).append(run)
    return [
        Group(setting, _slug(setting, list(by_setting)), tuple(its_runs))
        for setting, its_runs in by_setting.items()
    ]


def _slug(setting: Setting, others: Sequence[Setting]) -> str:
    same_gpu = [astuple(other) for other in others if other.gpu == setting.gpu]
    words = [setting.gpu]
    for index, value in enumerate(astuple(setting)):
        if len({other[index] for other in same_gpu}) == 1 or value is None:
            continue
        if isinstance(value, bool):
            words.append("simulated" if value else "measured")
        else:
            words += list(value) if isinstance(value, tuple) else [value]
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip("-.") or "none" for word in words)
