"""The policies side by side under one load: a dot for each run, a bar at their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .against_load import DURATIONS, FIRST_TOKENS, HITS, Quantity
from .conditions import conditions
from .loads import panel_title
from .runs import Group, Run
from .style import FONT_PT, GREY, common_style, in_order, look, new_figure, save

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
