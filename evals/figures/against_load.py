"""Figures with the load on the horizontal axis: durations, first tokens, hit rate, and savings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .runs import BARS, LOADS, Group, Run, conditions, panel_title
from .style import (
    FONT_PT,
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


Measure = Callable[[Run], float | None]


def summary_value(name: str, *, scale: float = 1.0) -> Measure:
    """The measure that reads `name` from a run's summary; None where the run has no such value."""

    def measure(run: Run) -> float | None:
        value = run.summary.get(name)
        return value * scale if isinstance(value, int | float) else None

    return measure


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


# MERGED: Numbers to draw: the mean over repeats and seeds, and the least and largest of them.


@dataclass(frozen=True, slots=True)
class Point:
    """One place on a line: the mean of `num_runs` values, and how far they lie apart."""

    x: float
    mean: float
    least: float
    most: float
    num_runs: int


def point(x: float, values: Sequence[float]) -> Point:
    return Point(x, fmean(values), min(values), max(values), len(values))


def against_load(runs: Iterable[Run], measure: Measure) -> dict[str, list[Point]]:
    """A line for each policy that has a value under some load."""
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        value = measure(run)
        if value is not None and run.load is not None:
            values[run.policy][run.load].append(value)
    return _lines(values)


def saved_against_load(
    runs: Sequence[Run], measure: Measure, baseline: str
) -> dict[str, list[Point]]:
    """(baseline - policy) / baseline in percent, run by run against the one with the same jobs.

    Where the baseline has no such run, its mean under the same load stands in.
    """
    base = [run for run in runs if run.policy == baseline]
    paired = {run.pair: measure(run) for run in base}
    means = {place.x: place.mean for place in against_load(base, measure).get(baseline, ())}
    values: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        own = measure(run)
        if run.load is None or own is None or run.policy == baseline:
            continue
        reference = paired.get(run.pair) or means.get(run.load)
        if reference:
            values[run.policy][run.load].append(100.0 * (reference - own) / reference)
    return _lines(values)


def _lines(values: dict[str, dict[float, list[float]]]) -> dict[str, list[Point]]:
    return {
        policy: [point(x, by_load[x]) for x in sorted(by_load)]
        for policy, by_load in values.items()
    }


# MERGED: The policies side by side under one load: a dot for each run, a bar at their mean.

QUANTITIES = (*DURATIONS, *FIRST_TOKENS, *HITS)
_PANEL_WIDTH_IN = 3.2
_ROOM_FOR_RATIOS = 1.25


def draw_side_by_side(group: Group, baseline: str, path: Path) -> Path:
    """Every quantity that some run has; each mean with its ratio to the baseline's."""
    policies = in_order([run.policy for run in group.runs])
    shown = [q for q in QUANTITIES if any(q.measure(run) is not None for run in group.runs)]
    with common_style():
        num_columns = min(3, len(shown))
        num_rows = -(-len(shown) // num_columns)
        size = (_PANEL_WIDTH_IN * num_columns + 1.0, num_rows * (1.0 + 0.32 * len(policies)) + 0.7)
        figure = new_figure(*size)
        panels = figure.subplots(num_rows, num_columns, squeeze=False, sharey=True)
        for axes, quantity in zip(panels.flat, shown, strict=False):
            _draw_panel(axes, group.runs, policies, quantity, baseline)
        for axes in panels.flat[len(shown) :]:
            axes.set_axis_off()
        panels[0][0].set_yticks(range(len(policies)), policies)
        panels[0][0].set_ylim(len(policies) - 0.5, -0.5)
        figure.suptitle(panel_title(group), fontsize=FONT_PT + 2, x=0.01, ha="left")
        note = "dots: runs; bars: their mean"
        if baseline in policies:
            note += f", and its ratio to that of {baseline}"
        return save(figure, path, conditions=conditions(group.runs, size[0], note))


def _draw_panel(
    axes: Any, runs: Sequence[Run], policies: Sequence[str], quantity: Quantity, baseline: str
) -> None:
    means = {}
    for row, policy in enumerate(policies):
        values = [quantity.measure(run) for run in runs if run.policy == policy]
        known = [value for value in values if value is not None]
        if not known:
            continue
        means[policy] = fmean(known)
        kind = look(policy)
        axes.barh(row, means[policy], height=0.55, color=kind.color, alpha=0.25, zorder=2)
        axes.plot(
            known, [row] * len(known), kind.marker, color=kind.color, zorder=3, markersize=4.5
        )
    axes.set(title=quantity.title, xlabel=quantity.unit)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    largest = quantity.limits[1] if quantity.limits else _largest(runs, quantity)
    axes.set_xlim(0.0, _ROOM_FOR_RATIOS * largest or 1.0)
    if quantity.limits:
        axes.set_xticks([quantity.limits[1] * share / 4 for share in range(5)])
    _write_ratios(axes, means, policies, baseline)


def _largest(runs: Sequence[Run], quantity: Quantity) -> float:
    return max((quantity.measure(run) or 0.0 for run in runs), default=0.0)


def _write_ratios(
    axes: Any, means: dict[str, float], policies: Sequence[str], baseline: str
) -> None:
    reference = means.get(baseline)
    for row, policy in enumerate(policies):
        if reference and policy in means and policy != baseline:
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
