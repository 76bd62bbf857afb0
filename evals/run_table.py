"""Reads runs into a table, a row a run, and groups those that can share a figure.

Two runs share a figure if they differ in policy, load, seed and repeat alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkv.errors import InputError

from .outcomes import RunOutcome, summarize
from .rows import TURNS_FILE, read_rows, read_runs

LOADS = {"jps": "jobs per second", "concurrency": "jobs at once"}
"""What can be swept, with the label of its axis."""
CONDITIONS = (
    *("gpu", "model", "workload", "tools", "blocks", "times", "num_gpus", "turns", "trace"),
    *("token_scale", "max_context_tokens", "max_num_seqs", "max_num_batched_tokens"),
    *("max_model_len", "block_size"),
)
"""What sets runs apart that cannot share a figure."""
_USUAL = {"num_gpus": 1, "token_scale": 1.0, "tools": "recorded"}


def load_runs(paths: Sequence[str | Path]) -> tuple[pd.DataFrame, list[str]]:
    """A row a run that has a finished job, and a line on each that has none.

    A path is a folder with runs anywhere below it, or a `.jsonl` file of summaries, one a line.
    Raises InputError for rows that are missing or misshapen, and if no run is left.
    """
    rows: list[dict[str, Any]] = []
    for path in map(Path, paths):
        try:
            if path.suffix == ".jsonl" and path.name != TURNS_FILE:
                rows += [_row_of_summary(line) for line in read_rows(path, ("policy", "mean_s"))]
            else:
                rows += map(row_of, read_runs([path]))
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}: rows that cannot be drawn: {reason}") from error
    left_out = [
        f"{row['policy']}: none of its {row['jobs']} jobs is done, left out"
        for row in rows
        if not row["completed"]
    ]
    kept = [row for row in rows if row["completed"]]
    if not kept:
        raise InputError("; ".join(left_out) or f"{', '.join(map(str, paths))}: no run in it")
    return pd.DataFrame(kept), left_out


def table_of(runs: Iterable[RunOutcome]) -> pd.DataFrame:
    """The runs as `load_runs` has them."""
    return pd.DataFrame([row_of(run) for run in runs])


def row_of(run: RunOutcome) -> dict[str, Any]:
    """Raise ValueError, TypeError or AttributeError for values that cannot be drawn."""
    return {
        **summarize(run),
        **_load_of(run.workload),
        "seed": run.workload.get("seed"),
        "repeat": run.metadata.get("repeat"),
        "commit": run.metadata.get("commit"),
        "setting": _setting(run),
        "outcomes": run.jobs,
    }


def _load_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    kind = next((kind for kind in LOADS if facts.get(kind) is not None), None)
    return {"load_kind": kind, "load": float(facts[kind]) if kind else math.nan}


def _row_of_summary(summary: Mapping[str, Any]) -> dict[str, Any]:
    setting = tuple((n, str(summary[n])) for n in CONDITIONS if summary.get(n) is not None)
    counts = {"jobs": summary.get("completed", 1), "completed": 1, "job_durations": []}
    facts = {**_load_of(summary), **counts, "setting": setting, "outcomes": ()}
    return facts | dict(summary)


def _setting(run: RunOutcome) -> tuple[tuple[str, str], ...]:
    """What the runs of one figure have in common; a usual value is left out."""
    config = run.metadata.get("config") or {}
    asked = config.get("blocks") or config.get("num_gpu_blocks_override")
    given = {name: config.get(name, run.workload.get(name)) for name in CONDITIONS}
    given["gpu"] = config.get("gpu") or "server"
    given["model"] = config.get("model") or run.metadata.get("model")
    given["workload"] = run.workload.get("name")
    # an endless pool is one of its policy: it stands next to any other
    given["blocks"] = None if run.policy.endswith("@infinite") else asked
    given["times"] = "simulated" if run.metadata.get("is_simulated") else None
    return tuple(
        (name, _text(value))
        for name, value in given.items()
        if value is not None and value != _USUAL.get(name)
    )


def _text(value: object) -> str:
    """A value as text; a file (a profile, a trace, a model's folder) gives its own name."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return Path(text).stem if "/" in text or text.endswith(".json") else text


def grouped(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The runs of each setting, by a name for files of what sets it apart; "" for a single one.

    Runs on a pool without limit join every setting that differs in nothing else.
    """
    is_endless = runs["policy"].str.endswith("@infinite")
    settings = list(dict.fromkeys(runs["setting"][~is_endless])) or list(set(runs["setting"]))
    without_blocks = {s: tuple(p for p in s if p[0] != "blocks") for s in settings}
    found = {}
    for setting in settings:
        joins = is_endless & (runs["setting"] == without_blocks[setting])
        apart = [
            value
            for name, value in setting
            if any(dict(other).get(name) != value for other in settings)
        ]
        if not apart and len(settings) > 1:
            apart = ["usual"]
        found["_".join(apart).replace("/", "-")] = runs[(runs["setting"] == setting) | joins]
    return found


def heaviest(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs under the heaviest load; all of them if no load was set."""
    return runs if runs["load"].isna().all() else runs[runs["load"] == runs["load"].max()]


def conditions(runs: pd.DataFrame) -> str:
    """The text under a figure: machine, workload, model, pool, n, seeds and commits."""
    settings = dict.fromkeys(pair for each in runs["setting"] for pair in each)
    parts = [f"{name.replace('_', ' ')} {value}" for name, value in settings]
    if "repeats" in runs:
        parts.append(f"n = {_range(runs['repeats'])} runs a point")
    else:
        counts = runs.groupby(["policy", "load", "setting"], dropna=False).size()
        parts += [f"n = {_range(counts)} runs a point", f"{_range(runs['jobs'])} jobs a run"]
    for name in ("seed", "commit"):
        known = list(dict.fromkeys(runs[name].dropna())) if name in runs else []
        if known:
            shown = ", ".join(str(int(v) if name == "seed" else v) for v in known[:5])
            parts.append(f"{name}{'s' if len(known) > 1 else ''} {shown}")
    missing = int((runs["jobs"] - runs["completed"]).sum()) if runs["outcomes"].any() else 0
    if missing:
        parts.append(f"{missing} jobs failed or cut, not counted in durations")
    return "; ".join(parts)


def _range(numbers: pd.Series) -> str:
    least, most = int(numbers.min()), int(numbers.max())
    return f"{least}" if least == most else f"{least} to {most}"
