"""A figure for each kind of tools: mean and p99 over stock's, in every regime."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from agentkv.evals.figures.style import (
    BLUE,
    FONT_PT,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Look,
    common_style,
    in_order,
    legend_above,
    look,
    new_figure,
    save,
)

from .findings import STOCK

PANELS = (("Mean job duration", "mean_s"), ("99th percentile of job duration", "p99_s"))
_TICKS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 6, 10)
_REGIME_IN, _MARGIN_IN, _PANEL_IN = 0.55, 1.0, 3.0
_CHARS_PER_IN = 19
_SPREAD = 0.6
"""Of the room a regime has, what its policies lie apart."""
_VARIANTS = (PURPLE, GREEN, ORANGE, SKY, BLUE, VERMILLION)
_MARKERS = "<>pv^D"
Document = Mapping[str, Any]


def draw_study(found: Document, out: Path) -> list[Path]:
    """The figures that were written; OSError if that fails."""
    paths = []
    for tools in dict.fromkeys(regime["tools"] for regime in found["regimes"]):
        regimes = [regime for regime in found["regimes"] if regime["tools"] == tools]
        policies = in_order([name for name in found["policies"] if name != STOCK])
        if any(_ratio(regime, name, "mean_s") for regime in regimes for name in policies):
            path = out / f"ratios-{re.sub(r'[^A-Za-z0-9_.-]', '-', tools)}.png"
            paths.append(_draw(found, tools, regimes, policies, path))
    return paths


def _draw(
    found: Document, tools: str, regimes: Sequence[Document], policies: Sequence[str], path: Path
) -> Path:
    width_in = max(7.0, _MARGIN_IN + _REGIME_IN * len(regimes))
    looks = _looks(policies)
    with common_style():
        figure = new_figure(width_in, _PANEL_IN * len(PANELS) + 1.2)
        panels = figure.subplots(len(PANELS), 1, sharex=True)
        for axes, (title, key) in zip(panels, PANELS, strict=True):
            _draw_panel(axes, regimes, looks, key)
            axes.set(title=f"{title}, {tools} tools", ylabel=f"times that of {STOCK}")
        _name_regimes(panels[-1], regimes)
        legend_above(figure, panels)
        return save(figure, path, conditions=_conditions(found, width_in))


def _looks(policies: Sequence[str]) -> dict[str, Look]:
    """A policy with settings of its own gets a look that no other of the figure has."""
    variants = [name for name in policies if "{" in name]
    return {
        name: Look(
            _VARIANTS[variants.index(name) % len(_VARIANTS)],
            _MARKERS[variants.index(name) % len(_MARKERS)],
            is_hollow=True,
        )
        if name in variants
        else look(name)
        for name in policies
    }


def _draw_panel(
    axes: Any, regimes: Sequence[Document], looks: Mapping[str, Look], key: str
) -> None:
    axes.axhline(1.0, color=GREY, linewidth=1.0, zorder=1)
    for place, (policy, its_look) in enumerate(looks.items()):
        shift = _SPREAD * ((place + 0.5) / len(looks) - 0.5)
        points = [(x + shift, _ratio(regime, policy, key)) for x, regime in enumerate(regimes)]
        known = [(x, ratio) for x, ratio in points if ratio is not None]
        axes.errorbar(
            [x for x, _ in known],
            [ratio["mean"] for _, ratio in known],
            yerr=[
                [max(0.0, ratio["mean"] - ratio["least"]) for _, ratio in known],
                [max(0.0, ratio["most"] - ratio["mean"]) for _, ratio in known],
            ],
            label=policy,
            **{**its_look.line(), "linestyle": "none"},
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", visible=False)
    for x, regime in enumerate(regimes):
        if not regime["is_pressured"]:
            axes.axvspan(x - 0.5, x + 0.5, color="#f2f2f2", zorder=0)
        if x and regime["pool_blocks"] != regimes[x - 1]["pool_blocks"]:
            axes.axvline(x - 0.5, color=GREY, linewidth=0.8, linestyle=":")


def _name_regimes(axes: Any, regimes: Sequence[Document]) -> None:
    axes.set_xlim(-0.5, len(regimes) - 0.5)
    names = [f"{regime['load']}\n{regime['pool_blocks']:,}" for regime in regimes]
    axes.set_xticks(range(len(regimes)), names, fontsize=FONT_PT - 2)
    axes.set_xlabel("load, and blocks in the pool")


def _ratio(regime: Document, policy: str, key: str) -> Document | None:
    entry = regime["policies"].get(policy)
    ratio: Document | None = None if entry is None else entry["ratios"][key]
    return ratio


def _conditions(found: Document, width_in: float) -> str:
    config = found["config"]
    machine = config["machine"]
    text = "; ".join(
        (
            f"on {machine['name']}, simulated",
            f"model {machine['model']}",
            f"workload {config['trace'] or config['workload']}, part {config['part']}",
            f"at most {config['max_turns']} turns",
            f"{config['num_jobs']} jobs in each run",
            f"seeds {', '.join(map(str, found['seeds']))}",
            f"commit {', '.join(found['commits'])}",
            "points: geometric mean over seeds; bars: least to largest seed",
            f"grey: no pressure ({STOCK} recomputes {found['pressured_share']:.0%} or less)",
        )
    )
    return textwrap.fill(text, int(width_in * _CHARS_PER_IN))
