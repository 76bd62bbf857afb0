"""How job durations are distributed: the share of jobs done within a time, load by load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from .against_load import Point, point
from .runs import BARS, Group, Run, conditions, panel_title, shown_loads
from .style import FONT_PT, common_style, in_order, legend_above, look, panel_grid, save

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


# MERGED: Mean latency turn by turn, as the context grows; a panel for each load.

_TURN_PANEL_IN = (4.4, 3.1)
_MIN_ANSWERED = 5
"""Turns that fewer jobs of a run reach are noise and left out, unless there are no others."""
_MAX_TICKS = 12


def draw_by_turn(group: Group, path: Path) -> Path:
    """The mean over a run's jobs, and its spread over runs; OSError if writing fails."""
    shown = shown_loads(group)
    with common_style():
        figure, panels, width_in = panel_grid(len(shown), _TURN_PANEL_IN)
        for axes, part in zip(panels, shown, strict=True):
            _draw_turns(axes, part.runs)
            axes.set(title=panel_title(part), ylabel="mean latency, seconds")
        legend_above(figure, panels)
        runs = [run for part in shown for run in part.runs]
        return save(figure, path, conditions=conditions(runs, width_in, BARS))


def _draw_turns(axes: Any, runs: Sequence[Run]) -> None:
    num_turns = 0
    for policy in in_order([run.policy for run in runs]):
        points = _points([run for run in runs if run.policy == policy])
        num_turns = max(num_turns, len(points))
        axes.errorbar(
            [place.x for place in points],
            [place.mean for place in points],
            yerr=[
                [place.mean - place.least for place in points],
                [place.most - place.mean for place in points],
            ],
            label=policy,
            **look(policy).line(),
        )
    axes.set_ylim(bottom=0.0)
    _label_turns(axes, runs, num_turns)


def _points(runs: Sequence[Run]) -> list[Point]:
    """Turns from 1, as people count; up to the last that enough jobs of every run reach."""
    per_run = [run.summary["per_turn_avg_latency_ms"] for run in runs]
    num_turns = min(_num_shown(run) for run in runs)
    places = []
    for turn in range(num_turns):
        values = [means[turn] / 1000.0 for means in per_run if means[turn] is not None]
        if values:
            places.append(point(turn + 1, values))
    return places


def _num_shown(run: Run) -> int:
    answered = Counter(
        turn.turn for job in run.outcome.jobs for turn in job.turns if turn.error is None
    )
    enough = [turn for turn, count in answered.items() if count >= _MIN_ANSWERED]
    return max(enough or answered) + 1


def _label_turns(axes: Any, runs: Sequence[Run], num_turns: int) -> None:
    """With few turns, the prompt's length stands under each."""
    axes.set_xlabel("turn")
    if not 0 < num_turns <= _MAX_TICKS:
        return
    labels = []
    for turn in range(num_turns):
        lengths = [run.summary["per_turn_avg_prompt_tokens"] for run in runs]
        known = [means[turn] for means in lengths if turn < len(means) and means[turn] is not None]
        labels.append(f"{turn + 1}\n{fmean(known):.0f}" if known else f"{turn + 1}")
    axes.set_xticks(range(1, num_turns + 1), labels, fontsize=FONT_PT - 2)
    axes.set_xlabel("turn, and the mean length of its prompt in tokens")
