"""Figures of a run's numbers: against the load, as savings, and side by side under one load.

A point is the mean over repeats and seeds, with the least and the largest of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from agentkv.errors import InputError

from ..summary import Spread
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
)

_PANEL_IN = (4.1, 3.1)
_BARS_WIDTH_IN = 3.2
_ROOM_FOR_RATIOS = 1.25
_LOG_RATIO = 20
"""Ranges wider than this are drawn on a logarithmic axis."""

Lines = dict[str, dict[float, Spread]]
"""By policy and load."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One panel's axis: a number of a run's summary, times `scale`."""

    name: str
    title: str
    unit: str
    scale: float = 1.0
    limits: tuple[float, float] | None = None

    def of(self, run: Run) -> float | None:
        value = run.summary.get(self.name)
        return value * self.scale if isinstance(value, int | float) else None


_FIRST = "Time to first token, first turn, p99"
_LATER = "Time to first token, later turns, p99"
DURATIONS = (
    Quantity("mean_s", "Mean job duration", "seconds"),
    Quantity("p99_s", "99th percentile of job duration", "seconds"),
)
FIRST_TOKENS = (
    Quantity("ttft_first_p99_s", _FIRST, "seconds"),
    Quantity("ttft_continuing_p99_s", _LATER, "seconds"),
)
HITS = (
    Quantity(
        "hit_rate", "Hit rate of later turns", "% of their prompt tokens", 100.0, (0.0, 100.0)
    ),
)


def against_load(runs: Iterable[Run], quantity: Quantity) -> Lines:
    """A line for each policy that has a value under some load."""
    return _lines((run, quantity.of(run)) for run in runs)


def saved_against_load(runs: Sequence[Run], quantity: Quantity, baseline: str) -> Lines:
    """(baseline - policy) / baseline in percent, run by run against the one with the same jobs.

    Where the baseline has no such run, its mean under the same load stands in.
    """
    base = [run for run in runs if run.policy == baseline]
    paired = {run.pair: quantity.of(run) for run in base}
    means = against_load(base, quantity).get(baseline, {})

    def saved(run: Run) -> float | None:
        value = quantity.of(run)
        mean = means[run.load].mean if run.load in means else None
        reference = paired.get(run.pair) or mean
        return 100.0 * (reference - value) / reference if reference and value is not None else None

    return _lines((run, saved(run)) for run in runs if run.policy != baseline)


def _lines(values: Iterable[tuple[Run, float | None]]) -> Lines:
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run, value in values:
        if value is not None and run.load is not None:
            found[run.policy][run.load].append(value)
    spreads = {
        policy: {load: Spread.of(by_load[load]) for load in sorted(by_load)}
        for policy, by_load in found.items()
    }
    return {
        policy: {load: spread for load, spread in line.items() if spread is not None}
        for policy, line in spreads.items()
    }


def draw_sweep(groups: Sequence[Group], quantities: Sequence[Quantity], path: Path) -> Path:
    """A row of panels for each quantity, a column for each setting."""
    grid = [[against_load(group.runs, quantity) for group in groups] for quantity in quantities]
    if not any(lines for row in grid for lines in row):
        raise InputError(f"{path.name}: no run has a value under a load")
    is_wide = len(groups) == 1
    shape = (1, len(quantities)) if is_wide else (len(quantities), len(groups))
    with common_style():
        figure, panels = _panels(*shape, len({run.policy for g in groups for run in g.runs}))
        for row, quantity in enumerate(quantities):
            for column, group in enumerate(groups):
                axes = panels[0][row] if is_wide else panels[row][column]
                _draw_lines(axes, grid[row][column], group)
                _scale_y(axes, grid[row][column], quantity.limits)
                name = quantity.title if is_wide else f"{group.slug}: {quantity.title.lower()}"
                axes.set(title=name, ylabel=quantity.unit)
        return _finish(figure, panels, groups, path)


def draw_savings(groups: Sequence[Group], baseline: str, path: Path) -> Path:
    """How much shorter than under `baseline` the mean job is; InputError without a baseline."""
    lines = [saved_against_load(group.runs, DURATIONS[0], baseline) for group in groups]
    if not any(lines):
        raise InputError(f"{path.name}: needs runs of {baseline} and of another policy")
    with common_style():
        figure, panels = _panels(1, len(groups), len({name for line in lines for name in line}))
        for axes, group, its_lines in zip(panels[0], groups, lines, strict=True):
            axes.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
            _draw_lines(axes, its_lines, group)
            title = f"{group.slug}: mean" if len(groups) > 1 else "Mean"
            axes.set(title=f"{title} duration saved", ylabel=f"% of {baseline} (above 0: faster)")
        return _finish(figure, panels, groups, path)


def _panels(num_rows: int, num_columns: int, num_policies: int) -> tuple[Any, Any]:
    legend_in = 0.5 + 0.2 * (num_policies // 5)
    width_in = max(_PANEL_IN[0] * num_columns, MIN_WIDTH_IN)
    figure = new_figure(width_in, _PANEL_IN[1] * num_rows + legend_in)
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _draw_lines(axes: Any, lines: Lines, group: Group) -> None:
    """The policies' lines; every load that was run is a tick."""
    for policy in in_order(list(lines)):
        draw_line(axes, policy, lines[policy])
    if not lines:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=GREY)
    loads = group.loads
    if len(loads) > 1 and loads[0] > 0 and loads[-1] / loads[0] > _LOG_RATIO:
        axes.set_xscale("log")
    if loads and len(loads) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(loads))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(LOADS.get(group.setting.load_kind or "", "load"))


def _scale_y(axes: Any, lines: Lines, limits: tuple[float, float] | None) -> None:
    means = [spread.mean for line in lines.values() for spread in line.values()]
    if limits is not None:
        axes.set_ylim(*limits)
    elif means and min(means) > 0 and max(means) / min(means) > _LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0.0)


def _finish(figure: Any, panels: Any, groups: Sequence[Group], path: Path) -> Path:
    legend_above(figure, panels.flat)
    runs = [run for group in groups for run in group.runs]
    return save(figure, path, conditions=conditions(runs, figure.get_size_inches()[0], BARS))


def draw_side_by_side(group: Group, baseline: str, path: Path) -> Path:
    """Every quantity that some run has: a dot for each run, a bar at their mean, and its ratio."""
    policies = in_order([run.policy for run in group.runs])
    quantities = (*DURATIONS, *FIRST_TOKENS, *HITS)
    shown = [q for q in quantities if any(q.of(run) is not None for run in group.runs)]
    with common_style():
        num_columns = min(3, len(shown))
        num_rows = -(-len(shown) // num_columns)
        size = (_BARS_WIDTH_IN * num_columns + 1.0, num_rows * (1.0 + 0.32 * len(policies)) + 0.7)
        figure = new_figure(*size)
        panels = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
        for axes, quantity in zip(panels.flat, shown, strict=False):
            _draw_bars(axes, group.runs, policies, quantity, baseline)
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
    axes: Any, runs: Sequence[Run], policies: Sequence[str], quantity: Quantity, baseline: str
) -> None:
    known: Mapping[str, list[float]] = {
        policy: [
            value
            for run in runs
            if run.policy == policy and (value := quantity.of(run)) is not None
        ]
        for policy in policies
    }
    means = {policy: sum(values) / len(values) for policy, values in known.items() if values}
    reference = means.get(baseline)
    for row, policy in enumerate(policies):
        if policy not in means:
            continue
        kind, values = look(policy), known[policy]
        axes.barh(row, means[policy], height=0.55, color=kind.color, alpha=0.25, zorder=2)
        places = [row] * len(values)
        axes.plot(values, places, kind.marker, color=kind.color, zorder=3, markersize=4.5)
        if reference and policy != baseline:
            axes.text(
                0.99,
                row,
                f"x {means[policy] / reference:.2f}",
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=FONT_PT - 1,
                color=GREY,
            )
    axes.set(title=quantity.title, xlabel=quantity.unit)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    largest = max((value for values in known.values() for value in values), default=0.0)
    if quantity.limits:
        largest = quantity.limits[1]
        axes.set_xticks([largest * share / 4 for share in range(5)])
    axes.set_xlim(0.0, _ROOM_FOR_RATIOS * largest or 1.0)
