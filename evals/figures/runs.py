"""Reads runs from disk, checks them, and groups them by the conditions they ran under.

Two runs share a figure if only policy, load, seed and repeat differ. Used by every figure of runs;
draws nothing.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from agentkv.errors import InputError

from ..outcomes import RunOutcome, summarize
from ..rows import RUN_FILE, TURNS_FILE, read_runs
from ..simulator.cost import GPU_MEMORY_UTILIZATION

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
BARS = "error bars: least to largest run"
_CHARS_PER_IN = 19
_MAX_LISTED = 6


@dataclass(frozen=True, slots=True)
class Setting:
    """What the runs of one figure have in common; None where the rows do not say.

    load_kind: a key of LOADS.
    blocks: size of the KV pool as asked for by flag; None for all that the memory holds.
    limits: keys of LIMITS with their values.
    """

    gpu: str
    model: str | None
    workload: str | None
    tools: str | None
    load_kind: str | None
    blocks: str | None
    is_simulated: bool
    limits: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One run with its summary and the load it ran under; None for a load that was not set.

    pair: runs of two policies with the same pair played the same jobs in the same round.
    pool: blocks of the KV pool, by flag or as counted; None if it has no limit or is not known.
    """

    outcome: RunOutcome
    policy: str
    summary: Mapping[str, Any]
    setting: Setting
    load: float | None
    pair: tuple[Any, ...]
    pool: str | None


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
    runs: list[Run] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        if path.is_file() and path.name not in (TURNS_FILE, RUN_FILE):
            raise InputError(f"{path}: not a run: give its folder, {TURNS_FILE} or {RUN_FILE}")
        try:
            found = [run_of(outcome) for outcome in read_runs([path])]
        except (InputError, OSError) as error:
            raise InputError(str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}: rows that cannot be drawn: {reason}") from error
        runs += [run for run in found if run.summary["completed"]]
        left_out += [f"{path}: {line}" for line in without_jobs(found)]
    if not runs:
        raise InputError("; ".join(left_out) or "no rows given")
    return runs, left_out


def without_jobs(runs: Sequence[Run]) -> list[str]:
    """A line on each run that has no finished job."""
    return [
        f"{run.policy}: none of its {run.summary['jobs']} jobs is done, left out"
        for run in runs
        if not run.summary["completed"]
    ]


def run_of(outcome: RunOutcome) -> Run:
    """Raise ValueError, TypeError or AttributeError for values that cannot be drawn."""
    for job in outcome.jobs:
        if not math.isfinite(job.duration_s + sum(turn.latency_s for turn in job.turns)):
            raise ValueError(f"job {job.job_id!r} has a time that is not a finite number")
    workload, metadata, server = outcome.workload, outcome.metadata, outcome.server
    config = metadata.get("config")
    limits = {name: _text(name, workload, config) for name in LIMITS}
    blocks = None if _has_endless_pool(outcome.policy) else _blocks(config)
    setting = Setting(
        gpu=_text("gpu", config, metadata) or "server",
        model=_text("model", config, metadata),
        workload=_text("name", workload),
        tools=_text("tools", workload, config),
        load_kind=next((kind for kind in LOADS if workload.get(kind) is not None), None),
        blocks=blocks,
        is_simulated=bool(metadata.get("is_simulated")),
        limits=tuple((name, value) for name, value in limits.items() if value is not None),
    )
    load = float(workload[setting.load_kind]) if setting.load_kind else None
    counted = _text(
        "num_blocks", metadata, server, metadata.get("server_info"), server.get("before")
    )
    return Run(
        outcome,
        outcome.policy,
        summarize(outcome),
        setting,
        load,
        pair=(load, workload.get("seed"), metadata.get("repeat")),
        pool=None if _has_endless_pool(outcome.policy) else blocks or counted,
    )


def _has_endless_pool(policy: str) -> bool:
    """True if a policy brings its own pool, so its runs belong to those on any."""
    return policy.endswith("@infinite")


def _blocks(config: Any) -> str | None:
    """The simulator's flag, compare's flag, or vLLM's among the flags of the server."""
    asked = _text("blocks", config) or _text("num_gpu_blocks_override", config)
    flags = config.get("server_flags") if isinstance(config, Mapping) else None
    if asked is None and isinstance(flags, list) and _BLOCK_FLAG in flags[:-1]:
        return str(flags[flags.index(_BLOCK_FLAG) + 1])
    return asked


def _text(name: str, *places: Any) -> str | None:
    """The value in the first place that has the name, as text; None for a default.

    A file (a calibrated profile, a trace, a model's folder) gives its own name.
    """
    for place in places:
        value = place.get(name) if isinstance(place, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        if value == _DEFAULTS.get(name):
            return None
        if not isinstance(value, str):
            return f"{value:g}" if isinstance(value, float) else str(value)
        return Path(value).stem if "/" in value or value.endswith(".json") else value
    return None


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by setting, named after the GPU, and after what else differs where that is not enough.

    Runs on a pool without limit join every setting that differs in nothing else.
    """
    by_setting: dict[Setting, list[Run]] = {}
    for run in sorted(runs, key=lambda run: _has_endless_pool(run.policy)):
        joined = [run.setting]
        if _has_endless_pool(run.policy):
            alike = [s for s in by_setting if replace(s, blocks=None) == run.setting]
            joined = alike or joined
        for setting in joined:
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
        value = getattr(setting, field.name)
        if len({getattr(other, field.name) for other in alike}) == 1:
            continue
        if field.name == "is_simulated":
            words.append("simulated" if value else "measured")
        elif field.name == "limits":
            words += [f"{name}-{limit}" for name, limit in value]
        elif value is not None:
            words.append(value)
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", word).strip("-.") or "none" for word in words)


def conditions(runs: Sequence[Run], width_in: float, *notes: str) -> str:
    """The text under a figure: machine, workload, model, pool, n, seeds, commit, and the notes."""
    settings = [run.setting for run in runs]
    workloads = [
        f"{setting.workload} ({setting.tools} tools)"
        if setting.workload and setting.tools
        else setting.workload
        for setting in settings
    ]
    pools = dict.fromkeys((run.setting.gpu, run.pool) for run in runs if run.pool is not None)
    sizes = [(gpu, f"{int(pool):,}" if pool.isdigit() else pool) for gpu, pool in pools]
    several = ", ".join(f"{size} ({gpu})" for gpu, size in sizes)
    pool_text = f"pool of {sizes[0][1]} blocks" if len(sizes) == 1 else f"pools of {several} blocks"
    repeats = Counter((run.setting, run.policy, run.load) for run in runs).values()
    num_jobs = sum(run.summary["jobs"] for run in runs)
    missing = num_jobs - sum(run.summary["completed"] for run in runs)
    parts = [
        _listed("on", [setting.gpu for setting in settings]),
        "simulated" if any(setting.is_simulated for setting in settings) else "",
        _listed("workload", workloads),
        *dict.fromkeys(
            LIMITS[name].format(n) for setting in settings for name, n in setting.limits
        ),
        _listed("model", [setting.model for setting in settings]),
        pool_text if sizes else "",
        f"n = {_range(repeats, 'run')} for each point, "
        f"{_range([run.summary['jobs'] for run in runs], 'job')} in each run",
        _listed("seed", [run.outcome.workload.get("seed") for run in runs]),
        _listed("commit", [run.outcome.metadata.get("commit") for run in runs]),
        f"{missing:,} of {num_jobs:,} jobs failed or cut, not counted" if missing else "",
        *notes,
    ]
    text = "; ".join(part for part in parts if part)
    return textwrap.fill(text, int(width_in * _CHARS_PER_IN))


def _listed(name: str, values: Sequence[Any]) -> str:
    """`name a, b`; empty if nothing is known."""
    known = list(dict.fromkeys(str(value) for value in values if value is not None))
    if not known:
        return ""
    shown = ", ".join(known[:_MAX_LISTED]) + (", ..." if len(known) > _MAX_LISTED else "")
    return f"{name}{'s' if len(known) > 1 and name != 'on' else ''} {shown}"


def _range(numbers: Collection[int], noun: str) -> str:
    least, most = min(numbers), max(numbers)
    if least == most:
        return f"{least:,} {noun}{'' if least == 1 else 's'}"
    return f"{least:,} to {most:,} {noun}s"
