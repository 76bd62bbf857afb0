"""Draws a run's numbers against the load, as savings, and side by side under one load.

A point is the mean over repeats and seeds, with the least and the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.ticker import FixedLocator, NullLocator

from agentkv.errors import InputError

from .runs import BARS, LOADS, Group, Run, conditions
from .style import (
    FONT_PT,
    GREY,
    MIN_WIDTH_IN,
    common_style,
    draw_line,
    in_order,
    legend_above,
    look,
    new_figure,
    save,
    spreads,
)

_PANEL_IN = (4.1, 3.1)
_BARS_WIDTH_IN = 3.2
_ROOM_FOR_RATIOS = 1.25
_LOG_RATIO = 20
"""Ranges wider than this are drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One panel's axis: a number of a run's summary, times `scale`."""

    name: str
    title: str
    unit: str
    scale: float = 1.0
    limits: tuple[float, float] | None = None


DURATIONS = (
    Quantity("mean_s", "Mean job duration", "seconds"),
    Quantity("p99_s", "99th percentile of job duration", "seconds"),
)
FIRST_TOKENS = (
    Quantity("ttft_first_p99_s", "Time to first token, first turn, p99", "seconds"),
    Quantity("ttft_continuing_p99_s", "Time to first token, later turns, p99", "seconds"),
)
SAVED = (Quantity("mean_s", "Mean duration saved", "% of {} (above 0: faster)"),)
"""Drawn against a baseline, whose name is in the unit."""
HITS = (
    Quantity("hit_rate", "Hit rate of later turns", "% of their prompt tokens", 100.0, (0, 100)),
)


def values_of(runs: Sequence[Run], quantity: Quantity) -> pd.DataFrame:
    """A row with policy, load, pair and value for each run that has the quantity."""
    rows = [(run.policy, run.load, run.pair, run.summary.get(quantity.name)) for run in runs]
    table = pd.DataFrame(rows, columns=["policy", "load", "pair", "value"])
    table["value"] = quantity.scale * table["value"].astype(float)
    return table.dropna(subset="value")


def against_load(
    runs: Sequence[Run], quantity: Quantity, baseline: str | None = None
) -> pd.DataFrame:
    """Mean, least and most by policy and load.

    With a baseline (baseline - policy) / baseline in percent, run by run against the one with the
    same jobs; where the baseline has no such run, its mean under the same load stands in.
    """
    table = values_of(runs, quantity)
    if baseline is not None:
        is_base = table["policy"] == baseline
        base, table = table[is_base], table[~is_base].copy()
        paired = dict(zip(base["pair"], base["value"], strict=True))
        means = base.groupby("load")["value"].mean()
        reference = table["pair"].map(paired.get).astype(float).fillna(table["load"].map(means))
        table["value"] = 100.0 * (reference - table["value"]) / reference.where(reference != 0)
    return spreads(table.dropna(subset="value"), ["policy", "load"])


def draw_sweep(
    groups: Sequence[Group],
    quantities: Sequence[Quantity],
    path: Path,
    *,
    baseline: str | None = None,
) -> Path:
    """Draw a row of panels for each quantity and a column for each setting.

    With a baseline each panel shows what is saved against it. Raises InputError without a value.
    """
    cells = [
        (group, quantity, against_load(group.runs, quantity, baseline))
        for quantity in quantities
        for group in groups
    ]
    num_policies = len({policy for *_, lines in cells for policy, _ in lines.index})
    if not num_policies:
        needs = f"needs runs of {baseline} and of another policy"
        raise InputError(f"{path.name}: {needs if baseline else 'no run has a value under a load'}")
    num_rows, num_columns = len(quantities), len(groups)
    if num_columns == 1:
        num_rows, num_columns = 1, num_rows
    width_in = max(_PANEL_IN[0] * num_columns, MIN_WIDTH_IN)
    with common_style():
        figure = new_figure(width_in, _PANEL_IN[1] * num_rows + 0.5 + 0.2 * (num_policies // 5))
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes, (group, quantity, lines) in zip(panels, cells, strict=True):
            _draw_lines(axes, lines, group)
            if baseline:
                axes.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
            else:
                _scale_y(axes, lines["mean"], quantity.limits)
            title = quantity.title
            axes.set_title(title if len(groups) == 1 else f"{group.slug}: {title.lower()}")
            axes.set_ylabel(quantity.unit.format(baseline))
        legend_above(figure, panels)
        runs = [run for group in groups for run in group.runs]
        return save(figure, path, conditions=conditions(runs, width_in, BARS))


def _draw_lines(axes: Any, lines: pd.DataFrame, group: Group) -> None:
    """Draw the policies' lines, with a tick at every load that was run."""
    for policy in in_order(lines.index.get_level_values("policy")):
        draw_line(axes, policy, lines.loc[policy])
    if lines.empty:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=GREY)
    loads = group.loads
    if len(loads) > 1 and loads[0] > 0 and loads[-1] / loads[0] > _LOG_RATIO:
        axes.set_xscale("log")
    if 0 < len(loads) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(loads))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(LOADS.get(group.setting.load_kind or "", "load"))


def _scale_y(axes: Any, means: pd.Series, limits: tuple[float, float] | None) -> None:
    if limits is not None:
        axes.set_ylim(*limits)
    elif means.min() > 0 and means.max() / means.min() > _LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0.0)


def draw_side_by_side(group: Group, baseline: str, path: Path) -> Path:
    """Draw a dot for each run and a bar at their mean, a panel for each quantity."""
    policies = in_order([run.policy for run in group.runs])
    quantities = (*DURATIONS, *FIRST_TOKENS, *HITS)
    tables = [(quantity, values_of(group.runs, quantity)) for quantity in quantities]
    shown = [(quantity, table) for quantity, table in tables if len(table)]
    with common_style():
        num_columns = min(3, len(shown))
        num_rows = -(-len(shown) // num_columns)
        size = (_BARS_WIDTH_IN * num_columns + 1.0, num_rows * (1.0 + 0.32 * len(policies)) + 0.7)
        figure = new_figure(*size)
        panels = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
        for axes, (quantity, table) in zip(panels.flat, shown, strict=False):
            _draw_bars(axes, table, policies, quantity, baseline)
        for axes in panels.flat[len(shown) :]:
            axes.set_axis_off()
        panels[0][0].set_yticks(range(len(policies)), policies)
        panels[0][0].set_ylim(len(policies) - 0.5, -0.5)
        figure.suptitle(group.title(), fontsize=FONT_PT + 2, x=0.01, ha="left")
        note = "dots: runs; bars: their mean"
        if baseline in policies:
            note += f", and its ratio to that of {baseline}"
        return save(figure, path, conditions=conditions(group.runs, size[0], note))


def _draw_bars(
    axes: Any, table: pd.DataFrame, policies: Sequence[str], quantity: Quantity, baseline: str
) -> None:
    by_policy = table.groupby("policy")["value"]
    means = by_policy.mean()
    reference = means.get(baseline)
    for policy, values in by_policy:
        row, style = policies.index(policy), look(policy)
        axes.barh(row, means[policy], height=0.55, color=style.color, alpha=0.25, zorder=2)
        places = [row] * len(values)
        axes.plot(values, places, style.marker, color=style.color, zorder=3, markersize=4.5)
        if reference and policy != baseline:
            text, beside = f"x {means[policy] / reference:.2f}", axes.get_yaxis_transform()
            place = {"ha": "right", "va": "center", "transform": beside}
            axes.text(0.99, row, text, fontsize=FONT_PT - 1, color=GREY, **place)
    axes.set(title=quantity.title, xlabel=quantity.unit)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    largest = table["value"].max()
    if quantity.limits:
        largest = quantity.limits[1]
        axes.set_xticks([largest * share / 4 for share in range(5)])
    axes.set_xlim(0.0, _ROOM_FOR_RATIOS * largest or 1.0)
