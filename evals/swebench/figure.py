"""Draws the figure of a report: pass rate, completion times, latency by turn, cached share.

Called by `report`, with its document.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..figures.style import common_style, legend_above, look, panel_grid, save

_PANEL_IN = (4.4, 2.9)
_CHARS_PER_IN = 19
_MIN_INSTANCES = 0.2
"""Turns that fewer than this share of the jobs reached are not drawn: they tell of few jobs."""

Runs = Sequence[Mapping[str, Any]]


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write the PNG; a panel for which no run has a number is left out. OSError if that fails."""
    runs = document["runs"]
    panels = [
        (draw_panel, title)
        for draw_panel, title, number in (
            (_pass_rates, "Pass rate, 95% Wilson interval", "pass_rate"),
            (_completion_times, "Job completion time", "jct_mean_s"),
            (_turn_latencies, "Mean latency of a turn", "jct_mean_s"),
            (_cached_shares, "Cached share of the prompt", "cached_share"),
        )
        if any(run[number] is not None for run in runs)
    ]
    with common_style():
        figure, axes, width_in = panel_grid(max(1, len(panels)), _PANEL_IN)
        for each, (draw_panel, title) in zip(axes, panels, strict=False):
            draw_panel(each, runs)
            each.set_title(title)
        if panels:
            legend_above(figure, axes)
        text = "; ".join(line.replace("**", "") for line in document["conditions"])
        save(figure, path, conditions=textwrap.fill(text, int(width_in * _CHARS_PER_IN)))


def _pass_rates(axes: Any, runs: Runs) -> None:
    for place, run in enumerate(runs):
        if (rate := run["pass_rate"]) is None:
            continue
        # the interval of 0 or 1 ends there, but for rounding
        errors = (rate - run["pass_rate_low"], run["pass_rate_high"] - rate)
        axes.errorbar(
            [place],
            [100 * rate],
            yerr=[[max(0.0, 100 * error)] for error in errors],
            label=run["name"],
            **{**look(run["policy"]).line(), "linestyle": "none"},
        )
    axes.set(ylim=(-3, 103), ylabel="% of instances", xlim=(-0.5, len(runs) - 0.5))
    axes.set_xticks([])


def _completion_times(axes: Any, runs: Runs) -> None:
    for run in runs:
        times_s = run["jobs_s"]
        if times_s:
            axes.plot(
                [times_s[0], *times_s],
                [100 * number / len(times_s) for number in range(len(times_s) + 1)],
                drawstyle="steps-post",
                markevery=max(1, len(times_s) // 6),
                label=run["name"],
                **look(run["policy"]).line(),
            )
    axes.set(xlabel="seconds", ylabel="% of jobs done", ylim=(0, 101))
    axes.set_xlim(left=0)


def _turn_latencies(axes: Any, runs: Runs) -> None:
    _against_turn(axes, runs, "per_turn_llm_mean_s", 1.0)
    axes.set(xlabel="turn", ylabel="seconds")
    axes.set_ylim(bottom=0)


def _cached_shares(axes: Any, runs: Runs) -> None:
    _against_turn(axes, runs, "per_turn_cached_share", 100.0)
    axes.set(xlabel="turn", ylabel="% of prompt tokens", ylim=(-3, 103))


def _against_turn(axes: Any, runs: Runs, name: str, scale: float) -> None:
    for run in runs:
        numbers = zip(run[name], run["per_turn_instances"], strict=True)
        found = [
            (turn, scale * value)
            for turn, (value, count) in enumerate(numbers, start=1)
            if value is not None and count >= _MIN_INSTANCES * run["completed"]
        ]
        if found:
            turns, values = zip(*found, strict=True)
            style = look(run["policy"]).line()
            axes.plot(turns, values, markevery=max(1, len(turns) // 10), label=run["name"], **style)
