"""What stands under a figure: under which conditions its numbers were measured."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from .runs import Run
from .settings import LIMITS

BARS = "error bars: least to largest run"
_CHARS_PER_IN = 19
_MAX_LISTED = 6


def conditions(runs: Sequence[Run], width_in: float, *notes: str) -> str:
    """Machine, workload, model, pool, n, seeds, commit, what was left out, and the notes."""
    parts = [
        _listed("on", [run.setting.gpu for run in runs]),
        "simulated" if any(run.setting.is_simulated for run in runs) else "",
        _listed("workload", [_workload(run) for run in runs]),
        *dict.fromkeys(LIMITS[name].format(n) for run in runs for name, n in run.setting.limits),
        _listed("model", [run.setting.model for run in runs]),
        _pools(runs),
        _counts(runs),
        _listed("seed", [run.outcome.workload.get("seed") for run in runs]),
        _listed("commit", [run.commit for run in runs]),
        _not_done(runs),
        *notes,
    ]
    text = "; ".join(part for part in parts if part)
    return textwrap.fill(text, int(width_in * _CHARS_PER_IN))


def _workload(run: Run) -> str | None:
    setting = run.setting
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
    if not pools:
        return ""
    blocks = [(gpu, f"{int(pool):,}" if pool.isdigit() else pool) for gpu, pool in pools]
    if len(blocks) == 1:
        return f"pool of {blocks[0][1]} blocks"
    return "pools of " + ", ".join(f"{pool} ({gpu})" for gpu, pool in blocks) + " blocks"


def _counts(runs: Sequence[Run]) -> str:
    jobs = sorted({len(run.outcome.jobs) for run in runs})
    repeats: dict[tuple[Any, ...], int] = {}
    for run in runs:
        place = (run.setting, run.policy, run.load)
        repeats[place] = repeats.get(place, 0) + 1
    runs_a_point = _range(sorted(set(repeats.values())), "run")
    return f"n = {runs_a_point} for each point, {_range(jobs, 'job')} in each run"


def _range(numbers: Sequence[int], noun: str) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]:,} {noun}{'' if numbers[0] == 1 else 's'}"
    return f"{numbers[0]:,} to {numbers[-1]:,} {noun}s"


def _not_done(runs: Sequence[Run]) -> str:
    num_jobs = sum(run.summary["jobs"] for run in runs)
    missing = num_jobs - sum(run.summary["completed"] for run in runs)
    return f"{missing:,} of {num_jobs:,} jobs failed or cut, not counted" if missing else ""
