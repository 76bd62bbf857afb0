"""Draws job durations and latencies by turn, with a panel for each load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .runs import BARS, Group, Run, conditions
from .style import (
    FONT_PT,
    common_style,
    draw_line,
    in_order,
    legend_above,
    look,
    panel_grid,
    save,
    spreads,
)

_LOG_RATIO = 50
_MIN_RANGE = 0.1
"""Differences below this share of the duration are not blown up to the width of the panel."""
_NUM_MARKERS = 6
_MIN_ANSWERED = 5
"""Turns that fewer jobs of a run reach are noise and left out, unless there are no others."""
_MAX_TICKS = 12


def draw_cumulative(group: Group, path: Path) -> Path:
    """Draw the share of jobs done within a time, all repeats together."""
    return _draw(group, path, 2.9, _draw_durations, "jobs of all runs together")


def draw_by_turn(group: Group, path: Path) -> Path:
    """Draw the mean latency turn by turn, and its spread over runs."""
    return _draw(group, path, 3.1, _draw_turns, BARS)


def _draw(group: Group, path: Path, height_in: float, draw_panel: Any, note: str) -> Path:
    shown = group.panels()
    with common_style():
        figure, panels, width_in = panel_grid(len(shown), (4.4, height_in))
        for axes, part in zip(panels, shown, strict=True):
            draw_panel(axes, part.runs)
            axes.set_title(part.title())
        legend_above(figure, panels)
        runs = [run for part in shown for run in part.runs]
        return save(figure, path, conditions=conditions(runs, width_in, note))


def _draw_durations(axes: Any, runs: Sequence[Run]) -> None:
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
    axes.set(xlabel="job duration, seconds", ylabel="% of jobs done", ylim=(0, 101))


def _draw_turns(axes: Any, runs: Sequence[Run]) -> None:
    rows = [
        (run.policy, turn + 1, latency_ms / 1000.0, run.summary["per_turn_avg_prompt_tokens"][turn])
        for run in runs
        for turn, latency_ms in enumerate(run.summary["per_turn_avg_latency_ms"])
        if latency_ms is not None
    ]
    table = pd.DataFrame(rows, columns=["policy", "turn", "value", "prompt_tokens"])
    num_turns = 0
    for policy in in_order(table["policy"]):
        # turns that few jobs of some run reach are noise
        shown = min(_num_shown(run) for run in runs if run.policy == policy)
        line = spreads(table[(table["policy"] == policy) & (table["turn"] <= shown)], "turn")
        draw_line(axes, policy, line)
        num_turns = max(num_turns, len(line))
    axes.set(ylim=(0.0, None), xlabel="turn", ylabel="mean latency, seconds")
    if 0 < num_turns <= _MAX_TICKS:
        lengths = table.groupby("turn")["prompt_tokens"].mean()
        turns = range(1, num_turns + 1)
        labels = [f"{n}\n{lengths[n]:.0f}" if n in lengths else f"{n}" for n in turns]
        axes.set_xticks(turns, labels, fontsize=FONT_PT - 2)
        axes.set_xlabel("turn, and the mean length of its prompt in tokens")


def _num_shown(run: Run) -> int:
    """Number of turns up to the last that `_MIN_ANSWERED` jobs of the run reach."""
    answered = Counter(
        turn.turn for job in run.outcome.jobs for turn in job.turns if turn.error is None
    )
    enough = [turn for turn, count in answered.items() if count >= _MIN_ANSWERED]
    return max(enough or answered) + 1
