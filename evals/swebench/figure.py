"""One figure of graded runs: pass rate, completion times, latency by turn, cached share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..figures.style import common_style, legend_above, look, panel_grid, save
from .report import Comparison, ReportedRun, is_completed, job_s

_PANEL_IN = (4.4, 2.9)
_CHARS_PER_IN = 19
_MIN_INSTANCES = 0.2
"""Turns that fewer than this share of the jobs reached are not drawn: they tell of few jobs."""


def draw(comparison: Comparison, path: Path) -> Path:
    """Write the PNG; a panel for which no run has a number is left out. OSError if that fails."""
    panels = [
        (draw_panel, title)
        for draw_panel, title, is_shown in (
            (_pass_rates, "Pass rate, 95% Wilson interval", _any_graded),
            (_completion_times, "Job completion time", _any_ended),
            (_turn_latencies, "Mean latency of a turn", _any_ended),
            (_cached_shares, "Cached share of the prompt", _any_cached),
        )
        if is_shown(comparison.runs)
    ]
    with common_style():
        figure, axes, width_in = panel_grid(max(1, len(panels)), _PANEL_IN)
        for each, (draw_panel, title) in zip(axes, panels, strict=False):
            draw_panel(each, comparison.runs)
            each.set_title(title)
        if panels:
            legend_above(figure, axes)
        text = "; ".join(line.replace("**", "") for line in comparison.conditions())
        conditions = textwrap.fill(text, int(width_in * _CHARS_PER_IN))
        return save(figure, path, conditions=conditions)


def _any_graded(runs: Sequence[ReportedRun]) -> bool:
    return any(run.summary["pass_rate"] is not None for run in runs)


def _any_ended(runs: Sequence[ReportedRun]) -> bool:
    return any(run.summary["completed"] for run in runs)


def _any_cached(runs: Sequence[ReportedRun]) -> bool:
    return any(run.summary["cached_share"] is not None for run in runs)


def _pass_rates(axes: Any, runs: Sequence[ReportedRun]) -> None:
    for place, run in enumerate(runs):
        rate = run.summary["pass_rate"]
        if rate is None:
            continue
        low, high = run.summary["pass_rate_low"], run.summary["pass_rate_high"]
        kind = look(run.run.policy)
        axes.errorbar(
            [place],
            [100 * rate],
            # the interval of 0 or 1 ends there, but for rounding
            yerr=[[max(0.0, 100 * (rate - low))], [max(0.0, 100 * (high - rate))]],
            label=run.name,
            **{**kind.line(), "linestyle": "none"},
        )
    axes.set(ylim=(-3, 103), ylabel="% of instances", xlim=(-0.5, len(runs) - 0.5))
    axes.set_xticks([])


def _completion_times(axes: Any, runs: Sequence[ReportedRun]) -> None:
    for run in runs:
        times_s = sorted(job_s(row) for row in run.run.rows.values() if is_completed(row))
        shares = [100 * (number + 1) / len(times_s) for number in range(len(times_s))]
        if times_s:
            axes.plot(
                [times_s[0], *times_s],
                [0.0, *shares],
                drawstyle="steps-post",
                markevery=max(1, len(times_s) // 6),
                label=run.name,
                **look(run.run.policy).line(),
            )
    axes.set(xlabel="seconds", ylabel="% of jobs done", ylim=(0, 101))
    axes.set_xlim(left=0)


def _turn_latencies(axes: Any, runs: Sequence[ReportedRun]) -> None:
    _against_turn(axes, runs, "per_turn_llm_mean_s", 1.0)
    axes.set(xlabel="turn", ylabel="seconds")
    axes.set_ylim(bottom=0)


def _cached_shares(axes: Any, runs: Sequence[ReportedRun]) -> None:
    _against_turn(axes, runs, "per_turn_cached_share", 100.0)
    axes.set(xlabel="turn", ylabel="% of prompt tokens", ylim=(-3, 103))


def _against_turn(axes: Any, runs: Sequence[ReportedRun], name: str, scale: float) -> None:
    for run in runs:
        least = _MIN_INSTANCES * run.summary["completed"]
        found = [
            (turn, scale * value)
            for turn, (value, count) in enumerate(
                zip(run.summary[name], run.summary["per_turn_instances"], strict=True), start=1
            )
            if value is not None and count >= least
        ]
        if found:
            turns, values = zip(*found, strict=True)
            kind = look(run.run.policy).line()
            axes.plot(turns, values, markevery=max(1, len(turns) // 10), label=run.name, **kind)
