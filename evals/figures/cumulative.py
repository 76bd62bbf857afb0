"""How job durations are distributed: the share of jobs done within a time, load by load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .conditions import conditions
from .loads import panel_title, shown_loads
from .runs import Group, Run
from .style import common_style, in_order, legend_above, look, panel_grid, save

_PANEL_IN = (4.4, 2.9)
_LOG_RATIO = 50
_MIN_RANGE = 0.1
"""Differences below this share of the duration are not blown up to the width of the panel."""
_NUM_MARKERS = 6


def draw_cumulative(group: Group, path: Path) -> Path:
    """All jobs of all repeats together; OSError if writing fails."""
    shown = shown_loads(group)
    with common_style():
        figure, panels, width_in = panel_grid(len(shown), _PANEL_IN)
        for axes, part in zip(panels, shown, strict=True):
            _draw_panel(axes, part.runs)
            axes.set(title=panel_title(part), xlabel="job duration, seconds", ylim=(0, 101))
            axes.set_ylabel("% of jobs done")
        legend_above(figure, panels)
        runs = [run for part in shown for run in part.runs]
        note = "jobs of all runs together"
        return save(figure, path, conditions=conditions(runs, width_in, note))


def _draw_panel(axes: Any, runs: Sequence[Run]) -> None:
    slowest_s, fastest_s = 0.0, np.inf
    for policy in in_order([run.policy for run in runs]):
        same = [run for run in runs if run.policy == policy]
        durations_s = np.sort([time for run in same for time in run.summary["job_durations"]])
        shares = 100.0 * np.arange(1, len(durations_s) + 1) / len(durations_s)
        axes.plot(
            np.concatenate(([durations_s[0]], durations_s)),
            np.concatenate(([0.0], shares)),
            drawstyle="steps-post",
            markevery=max(1, len(durations_s) // _NUM_MARKERS),
            label=policy,
            **look(policy).line(),
        )
        slowest_s = max(slowest_s, durations_s[-1])
        fastest_s = min(fastest_s, durations_s[0])
    if fastest_s > 0 and slowest_s / fastest_s > _LOG_RATIO:
        axes.set_xscale("log")
    elif slowest_s - fastest_s < _MIN_RANGE * slowest_s:
        middle_s = (slowest_s + fastest_s) / 2
        axes.set_xlim(middle_s * (1 - _MIN_RANGE / 2), middle_s * (1 + _MIN_RANGE / 2))
