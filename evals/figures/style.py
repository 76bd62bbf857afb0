"""Sets sizes, type, and one colour and marker for each policy, the same in every figure.

Draws without pyplot, so nothing global is changed and no display is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

BLACK, GREY, LIGHT = "#000000", "#767676", "#d9d9d9"
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
    "agentkv@lossless": Look(VERMILLION, "+", ":"),
    "priority": Look(PURPLE, "*"),
    "ideal:in-order": Look(GREEN, "_"),
    "ideal:any-order": Look(PURPLE, "_"),
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


def panel_grid(num_panels: int, panel_in: tuple[float, float]) -> tuple[Any, list[Any], float]:
    """A figure with `num_panels` panels, two in a row, and its width in inches."""
    num_columns = min(2, num_panels)
    num_rows = math.ceil(num_panels / num_columns)
    width_in = max(panel_in[0] * num_columns, MIN_WIDTH_IN)
    figure = new_figure(width_in, panel_in[1] * num_rows + 0.5)
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axes in panels[num_panels:]:
        axes.set_axis_off()
    return figure, panels[:num_panels], width_in


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
