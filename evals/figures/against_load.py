"""Figures with the load on the horizontal axis: durations, first tokens, hit rate, and savings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .conditions import BARS, conditions
from .points import Measure, Point, against_load, saved_against_load, summary_value
from .runs import Group, Run
from .settings import LOADS
from .style import (
    GREY,
    MIN_WIDTH_IN,
    FigureError,
    common_style,
    in_order,
    legend_above,
    look,
    new_figure,
    save,
)

_PANEL_IN = (4.1, 3.1)
_LOG_RATIO = 20
"""Ranges wider than this are drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """One panel's vertical axis."""

    title: str
    unit: str
    measure: Measure
    limits: tuple[float, float] | None = None


DURATIONS = (
    Quantity("Mean job duration", "seconds", summary_value("mean_s")),
    Quantity("99th percentile of job duration", "seconds", summary_value("p99_s")),
)
FIRST_TOKENS = (
    Quantity("Time to first token, first turn, p99", "seconds", summary_value("ttft_first_p99_s")),
    Quantity(
        "Time to first token, later turns, p99", "seconds", summary_value("ttft_continuing_p99_s")
    ),
)
HITS = (
    Quantity(
        "Hit rate of later turns",
        "% of their prompt tokens",
        summary_value("hit_rate", scale=100.0),
        (0.0, 100.0),
    ),
)


def draw_sweep(groups: Sequence[Group], quantities: Sequence[Quantity], path: Path) -> Path:
    """A row of panels for each quantity, a column for each setting."""
    grid = [
        [against_load(group.runs, quantity.measure) for group in groups] for quantity in quantities
    ]
    if not any(line for row in grid for line in row):
        raise FigureError(f"{path.name}: no run has a value under a load")
    is_wide = len(groups) == 1
    shape = (1, len(quantities)) if is_wide else (len(quantities), len(groups))
    with common_style():
        figure, panels = _panels(*shape, len({run.policy for g in groups for run in g.runs}))
        for row, quantity in enumerate(quantities):
            for column, group in enumerate(groups):
                axes = panels[0][row] if is_wide else panels[row][column]
                _draw_lines(axes, grid[row][column])
                _scale_y(axes, grid[row][column], quantity.limits)
                name = quantity.title if is_wide else f"{group.slug}: {quantity.title.lower()}"
                axes.set(title=name, ylabel=quantity.unit)
                _scale_x(axes, group)
        return _finish(figure, panels, groups, path, BARS)


def draw_savings(groups: Sequence[Group], baseline: str, path: Path) -> Path:
    """How much shorter than under `baseline` the mean job is; FigureError without a baseline."""
    lines = [saved_against_load(group.runs, DURATIONS[0].measure, baseline) for group in groups]
    if not any(lines):
        raise FigureError(f"{path.name}: needs runs of {baseline} and of another policy")
    with common_style():
        figure, panels = _panels(1, len(groups), len({name for line in lines for name in line}))
        for axes, group, its_lines in zip(panels[0], groups, lines, strict=True):
            axes.axhline(0.0, color=GREY, linewidth=1.0, zorder=1)
            _draw_lines(axes, its_lines)
            title = f"{group.slug}: mean" if len(groups) > 1 else "Mean"
            axes.set(title=f"{title} duration saved", ylabel=f"% of {baseline} (above 0: faster)")
            _scale_x(axes, group)
        return _finish(figure, panels, groups, path, BARS)


def _panels(num_rows: int, num_columns: int, num_policies: int) -> tuple[Any, Any]:
    legend_in = 0.5 + 0.2 * (num_policies // 5)
    width_in = max(_PANEL_IN[0] * num_columns, MIN_WIDTH_IN)
    figure = new_figure(width_in, _PANEL_IN[1] * num_rows + legend_in)
    return figure, figure.subplots(num_rows, num_columns, squeeze=False)


def _draw_lines(axes: Any, lines: Mapping[str, Sequence[Point]]) -> None:
    """Policies side by side at each load, a hair apart, so that no bar hides another."""
    for policy in in_order(list(lines)):
        points = lines[policy]
        axes.errorbar(
            [point.x for point in points],
            [point.mean for point in points],
            yerr=[
                [point.mean - point.least for point in points],
                [point.most - point.mean for point in points],
            ],
            label=policy,
            **look(policy).line(),
        )
    if not lines:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, ha="center", color=GREY)


def _scale_y(
    axes: Any, lines: Mapping[str, Sequence[Point]], limits: tuple[float, float] | None
) -> None:
    means = [point.mean for points in lines.values() for point in points]
    if limits is not None:
        axes.set_ylim(*limits)
    elif means and min(means) > 0 and max(means) / min(means) > _LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0.0)


def _scale_x(axes: Any, group: Group) -> None:
    """Every load that was run is a tick."""
    loads = group.loads
    if len(loads) > 1 and loads[0] > 0 and loads[-1] / loads[0] > _LOG_RATIO:
        axes.set_xscale("log")
    if loads and len(loads) <= 12:
        axes.xaxis.set_major_locator(FixedLocator(loads))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel(LOADS.get(group.setting.load_kind or "", "load"))


def _finish(figure: Any, panels: Any, groups: Sequence[Group], path: Path, *notes: str) -> Path:
    legend_above(figure, panels.flat)
    runs: list[Run] = [run for group in groups for run in group.runs]
    width_in = figure.get_size_inches()[0]
    return save(figure, path, conditions=conditions(runs, width_in, *notes))
