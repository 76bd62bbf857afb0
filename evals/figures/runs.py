"""The runs to draw: read from disk, checked, and grouped by the conditions they ran under.

Two runs share a figure if only policy, load, seed and repeat differ. Used by every figure of runs;
draws nothing.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from agentkv.errors import InputError

from ..outcomes import RunOutcome
from ..rows import RUN_FILE, TURNS_FILE, read_runs
from ..simulator.catalog import GPU_MEMORY_UTILIZATION
from ..summary import summarize

LOADS = {"jps": "jobs per second", "concurrency": "jobs at once"}
"""What can be swept, with the label of its axis."""
LIMITS = {
    "num_gpus": "{} GPUs",
    "turns": "{} turns a job at most",
    "trace": "trace {}",
    "token_scale": "tokens x {}",
    "max_context_tokens": "contexts to {} tokens",
    "max_num_seqs": "{} turns at once",
    "max_num_batched_tokens": "batches to {} tokens",
    "max_model_len": "server takes {} tokens",
    "block_size": "blocks of {} tokens",
    "gpu_memory_utilization": "{} of the GPU's memory",
    "arrivals": "arrivals {}",
    "mode": "{}",
}
"""Flags that change the jobs or the machine, in words."""
_DEFAULTS = {
    "num_gpus": 1,
    "token_scale": 1.0,
    "tools": "recorded",
    "gpu_memory_utilization": GPU_MEMORY_UTILIZATION,
    "arrivals": "poisson",
    "mode": "replay",
}
_BLOCK_FLAG = "--num-gpu-blocks-override"
MAX_PANELS = 4
BARS = "error bars: least to largest run"
_CHARS_PER_IN = 19
_MAX_LISTED = 6


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
    is_simulated: bool
    limits: tuple[tuple[str, str], ...]
    """Keys of LIMITS with their values."""


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
        """Blocks of the KV pool; None where it has no limit or is not known.

        As asked for by flag, else as the server or the simulator counted them.
        """
        if _has_endless_pool(self.policy):
            return None
        metadata, server = self.outcome.metadata, self.outcome.server
        facts = [metadata, server, metadata.get("server_info"), server.get("before")]
        return _blocks(metadata.get("config")) or _name(_find(facts, "num_blocks"))


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

    def heaviest(self) -> Group:
        """The runs under the heaviest load; all of them if no load was set."""
        return self.at(self.loads[-1] if self.loads else None)

    def panels(self) -> list[Group]:
        """At most MAX_PANELS parts, evenly from the lightest to the heaviest load."""
        loads: list[float | None] = list(self.loads) or [None]
        if len(loads) > MAX_PANELS:
            step = (len(loads) - 1) / (MAX_PANELS - 1)
            loads = [loads[round(index * step)] for index in range(MAX_PANELS)]
        return [self.at(load) for load in loads]

    def title(self) -> str:
        """The load of the first run in words; the workload's name if no load was set."""
        load = self.runs[0].load
        if load is None:
            return self.setting.workload or "all jobs"
        if self.setting.load_kind == "concurrency":
            return f"{load:g} jobs at once"
        return f"{load:g} job{'' if load == 1 else 's'} per second"


def load_runs(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """The runs below these paths that have a finished job, and a line on each that has none.

    Raises InputError for rows that are missing or misshapen, and if no run is left.
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
        raise InputError("; ".join(left_out) or "no rows given")
    return runs, left_out


def _read(path: Path) -> list[RunOutcome]:
    if path.is_file() and path.name not in (TURNS_FILE, RUN_FILE):
        raise InputError(f"{path}: not a run: give its folder, {TURNS_FILE} or {RUN_FILE}")
    try:
        return read_runs([path])
    except (InputError, OSError) as error:
        raise InputError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{path}: rows of another shape than {TURNS_FILE}: {reason}") from error


def _run(path: Path, outcome: RunOutcome) -> Run:
    try:
        for job in outcome.jobs:
            times = [job.arrived_s, job.ended_s]
            times += [time for turn in job.turns for time in (turn.sent_s, turn.ended_s)]
            if not job.turns:
                raise ValueError(f"job {job.job_id!r} has no turn")
            if not all(math.isfinite(time) for time in times):
                raise ValueError(f"job {job.job_id!r} has a time that is not a finite number")
        setting = _setting_of(outcome)
        load = float(outcome.workload[setting.load_kind]) if setting.load_kind else None
        return Run(outcome, summarize(outcome), setting, load)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: {outcome.policy}: values that cannot be drawn: {error}"
        ) from error


def _setting_of(outcome: RunOutcome) -> Setting:
    metadata = outcome.metadata
    config = metadata.get("config")
    flags: Sequence[Any] = [outcome.workload, config]
    limits = {name: _name(_find(flags, name)) for name in LIMITS}
    return Setting(
        gpu=_name(_find([config, metadata], "gpu")) or "server",
        model=_name(_find([config, metadata], "model")),
        workload=_name(_find([outcome.workload], "name")),
        tools=_name(_find(flags, "tools")),
        load_kind=next((kind for kind in LOADS if outcome.workload.get(kind) is not None), None),
        blocks=None if _has_endless_pool(outcome.policy) else _blocks(config),
        is_simulated=bool(metadata.get("is_simulated")),
        limits=tuple((name, value) for name, value in limits.items() if value is not None),
    )


def _has_endless_pool(policy: str) -> bool:
    """True if a policy brings its own pool, so its runs belong to those on any."""
    return policy.endswith("@infinite")


def _blocks(config: Any) -> str | None:
    """The simulator's flag, compare's flag, or vLLM's among the flags of the server."""
    for name in ("blocks", "num_gpu_blocks_override"):
        value = _name(_find([config], name))
        if value is not None:
            return value
    flags = config.get("server_flags") if isinstance(config, Mapping) else None
    if isinstance(flags, list) and _BLOCK_FLAG in flags[:-1]:
        return str(flags[flags.index(_BLOCK_FLAG) + 1])
    return None


def _find(places: Sequence[Any], name: str) -> str | int | float | None:
    """The value in the first place that has the name; None for a default, which says nothing."""
    for place in places:
        value = place.get(name) if isinstance(place, Mapping) else None
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return None if value == _DEFAULTS.get(name) else value
    return None


def _name(value: str | int | float | None) -> str | None:
    """A value as text; of a file (a calibrated profile, a trace, a model's folder) its own name."""
    if not isinstance(value, str):
        return None if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return Path(value).stem if "/" in value or value.endswith(".json") else value


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by setting, named after the GPU, and after what else differs where that is not enough.

    Runs on a pool without limit join every setting that differs in nothing else.
    """
    by_setting: dict[Setting, list[Run]] = {}
    for run in runs:
        if not _has_endless_pool(run.policy):
            by_setting.setdefault(run.setting, []).append(run)
    for run in runs:
        if _has_endless_pool(run.policy):
            alike = [s for s in by_setting if replace(s, blocks=None) == run.setting]
            for setting in alike or [run.setting]:
                by_setting.setdefault(setting, []).append(run)
    return [
        Group(setting, _slug(setting, list(by_setting)), tuple(its_runs))
        for setting, its_runs in by_setting.items()
    ]


def _slug(setting: Setting, others: Sequence[Setting]) -> str:
    """A name for files: the GPU, and what sets this setting apart from others of that GPU."""
    alike = [other for other in others if other.gpu == setting.gpu]
    words = [setting.gpu]
    for field in fields(Setting):
        if len({getattr(other, field.name) for other in alike}) > 1:
            words += _words(getattr(setting, field.name))
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip("-.") or "none" for word in words)


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield "simulated" if value else "measured"
    elif isinstance(value, tuple):
        yield from (f"{name}-{limit}" for name, limit in value)
    elif value is not None:
        yield str(value)


def conditions(runs: Sequence[Run], width_in: float, *notes: str) -> str:
    """The text under a figure: machine, workload, model, pool, n, seeds, commit, and the notes."""
    parts = [
        _listed("on", [run.setting.gpu for run in runs]),
        "simulated" if any(run.setting.is_simulated for run in runs) else "",
        _listed("workload", [_workload(run.setting) for run in runs]),
        *dict.fromkeys(LIMITS[name].format(n) for run in runs for name, n in run.setting.limits),
        _listed("model", [run.setting.model for run in runs]),
        _pools(runs),
        _counts(runs),
        _listed("seed", [run.outcome.workload.get("seed") for run in runs]),
        _listed("commit", [run.outcome.metadata.get("commit") for run in runs]),
        _not_done(runs),
        *notes,
    ]
    text = "; ".join(part for part in parts if part)
    return textwrap.fill(text, int(width_in * _CHARS_PER_IN))


def _workload(setting: Setting) -> str | None:
    if setting.workload is None or setting.tools is None:
        return setting.workload
    return f"{setting.workload} ({setting.tools} tools)"


def _listed(name: str, values: Sequence[Any]) -> str:
    """`name a, b`; empty if nothing is known."""
    known = list(dict.fromkeys(str(value) for value in values if value is not None))
    if not known:
        return ""
    shown = ", ".join(known[:_MAX_LISTED]) + (", ..." if len(known) > _MAX_LISTED else "")
    return f"{name}{'s' if len(known) > 1 and name != 'on' else ''} {shown}"


def _pools(runs: Sequence[Run]) -> str:
    pools = dict.fromkeys((run.setting.gpu, run.pool) for run in runs if run.pool is not None)
    blocks = [(gpu, f"{int(pool):,}" if pool.isdigit() else pool) for gpu, pool in pools]
    if len(blocks) == 1:
        return f"pool of {blocks[0][1]} blocks"
    listed = ", ".join(f"{pool} ({gpu})" for gpu, pool in blocks)
    return f"pools of {listed} blocks" if blocks else ""


def _counts(runs: Sequence[Run]) -> str:
    jobs = {len(run.outcome.jobs) for run in runs}
    repeats = Counter((run.setting, run.policy, run.load) for run in runs)
    runs_a_point = _range(set(repeats.values()), "run")
    return f"n = {runs_a_point} for each point, {_range(jobs, 'job')} in each run"


def _range(numbers: set[int], noun: str) -> str:
    least, most = min(numbers), max(numbers)
    if least == most:
        return f"{least:,} {noun}{'' if least == 1 else 's'}"
    return f"{least:,} to {most:,} {noun}s"


def _not_done(runs: Sequence[Run]) -> str:
    num_jobs = sum(run.summary["jobs"] for run in runs)
    missing = num_jobs - sum(run.summary["completed"] for run in runs)
    return f"{missing:,} of {num_jobs:,} jobs failed or cut, not counted" if missing else ""
