"""Draws a run's numbers against the load, as savings, and side by side under one load.

A point is the mean over repeats and seeds, with the least and the largest of them. A policy has the
same colour and marker in every figure. Drawn without pyplot, so nothing global is changed and no
display is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from agentkv.errors import InputError

from .runs import BARS, LOADS, Group, Run, conditions

BLACK, GREY = "#000000", "#767676"
ORANGE, SKY, GREEN = "#e69f00", "#56b4e9", "#009e73"
BLUE, VERMILLION, PURPLE = "#0072b2", "#d55e00", "#cc79a7"
"""Colours that people with any colour blindness can tell apart; its yellow is too pale on white.

Source: M. Okabe and K. Ito, Color Universal Design, 2008.
"""
DPI = 160
MIN_WIDTH_IN = 6.0
_LEGEND_KEY_IN = 0.65
_CHAR_PER_PT_IN = 0.0085
"""Widths of a legend's key with its margins, and of a character for each point of its font."""
FONT_PT = 9
_RC = {
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT + 1,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "errorbar.capsize": 2.5,
    "svg.hashsalt": "agentkv",
}


@dataclass(frozen=True, slots=True)
class Look:
    """Colour, marker and dashes of one policy's line."""

    color: str
    marker: str
    dashes: str = "-"
    is_hollow: bool = False

    def line(self) -> dict[str, Any]:
        """Keyword arguments of matplotlib's plot and errorbar."""
        face = "white" if self.is_hollow else self.color
        shape = {"marker": self.marker, "linestyle": self.dashes}
        return {"color": self.color, "markerfacecolor": face, **shape}


_LOOKS = {
    "fcfs": Look(BLACK, "o"),
    "continuum": Look(BLUE, "s"),
    "continuum:released": Look(SKY, "v"),
    "continuum:paper": Look(BLUE, "s", "--"),
    "context_serve": Look(ORANGE, "^"),
    "agentkv": Look(VERMILLION, "D"),
    "fcfs+offload": Look(GREEN, "P", "-."),
    "fcfs@infinite": Look(GREY, "x", ":"),
    "priority": Look(PURPLE, "*"),
}
_SPARE = (Look(PURPLE, "<"), Look(GREEN, ">"), Look(SKY, "p"))


def look(policy: str) -> Look:
    """The policy's own look, the same in every figure."""
    if policy in _LOOKS:
        return _LOOKS[policy]
    base = policy.partition("@")[0].partition("+")[0]
    if base in _LOOKS:
        known = _LOOKS[base]
        return Look(known.color, known.marker, ":" if "@" in policy else "-.", is_hollow=True)
    return _SPARE[sum(policy.encode()) % len(_SPARE)]


def in_order(policies: Iterable[str]) -> list[str]:
    """Each policy once: the known ones first, fcfs leading, then the others by name."""
    found = set(policies)
    return [name for name in dict.fromkeys([*_LOOKS, *sorted(found)]) if name in found]


def common_style() -> AbstractContextManager[None]:
    """matplotlib's settings for everything drawn inside the block."""
    return matplotlib.rc_context(_RC)


def new_figure(width_in: float, height_in: float) -> Any:
    """An empty figure that lays itself out."""
    return Figure(figsize=(width_in, height_in), layout="constrained")


def spreads(table: pd.DataFrame, keys: str | list[str]) -> pd.DataFrame:
    """Columns mean, min and max of `value`, by the keys."""
    return table.groupby(keys)["value"].agg(["mean", "min", "max"])


def draw_line(axes: Any, policy: str, line: pd.DataFrame) -> None:
    """Draw a policy's means, with bars from the least to the largest value."""
    errors = (line["mean"] - line["min"], line["max"] - line["mean"])
    # a mean of equal values may differ from them in the last digit
    bars = [error.clip(lower=0.0) for error in errors]
    axes.errorbar(line.index, line["mean"], yerr=bars, label=policy, **look(policy).line())


def legend_above(figure: Any, panels: Iterable[Any]) -> None:
    """One legend for all panels, each policy once and in the usual order."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    names = in_order(list(handles))
    entry_in = _LEGEND_KEY_IN + FONT_PT * _CHAR_PER_PT_IN * max(map(len, names))
    num_rows = math.ceil(len(names) * entry_in / figure.get_size_inches()[0])
    figure.legend(
        [handles[name] for name in names],
        names,
        loc="outside upper center",
        ncols=math.ceil(len(names) / num_rows),
    )


def save(figure: Any, path: Path, *, conditions: str) -> Path:
    """Write the PNG, or SVG, with the conditions under it; OSError if that fails."""
    figure.supxlabel(conditions, fontsize=FONT_PT - 2, color=GREY, x=0.01, ha="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    # without date and version of matplotlib in it, the same rows give the same bytes
    unnamed = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    figure.savefig(path, dpi=DPI, metadata=unnamed)
    return path


_PANEL_IN = (4.1, 3.1)
_BARS_WIDTH_IN = 3.2
_ROOM_FOR_RATIOS = 1.4
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
            note += f", and how much less or more it is than that of {baseline}"
        return save(figure, path, conditions=conditions(group.runs, size[0], note))


def compared(value: float, reference: float, *, is_share: bool) -> str:
    """How far a value is from another: `16% less`, or of shares in percent `27 points more`."""
    change = value - reference
    size = f"{abs(change):.0f} points" if is_share else f"{abs(change) / reference:.0%}"
    return f"{size} {'less' if change < 0 else 'more'}"


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
            text = compared(means[policy], reference, is_share=quantity.limits is not None)
            beside = axes.get_yaxis_transform()
            axes.text(0.99, row, text, ha="right", va="center", fontsize=FONT_PT, transform=beside)
    axes.set(title=quantity.title, xlabel=quantity.unit)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    largest = table["value"].max()
    if quantity.limits:
        largest = quantity.limits[1]
        axes.set_xticks([largest * share / 4 for share in range(5)])
    axes.set_xlim(0.0, _ROOM_FOR_RATIOS * largest or 1.0)
