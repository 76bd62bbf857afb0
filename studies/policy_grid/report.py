"""A study's tables as Markdown, and a figure for each kind of tools: mean and p99 over stock's."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
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
from agentkv.evals.tables import markdown_table

from .findings import PRESSURED_SHARE, REGIME, RELEASED, STOCK, Findings, geometric_mean

Document = Mapping[str, Any]
_RATIOS = {
    "mean": "mean_s",
    "p99": "p99_s",
    "max": "max_s",
    "max slowdown": "slowdown_max",
    "first TTFT p99": "ttft_first_p99_s",
    "its max": "ttft_first_max_s",
    "next TTFT p99": "ttft_continuing_p99_s",
    "its max ": "ttft_continuing_max_s",
    "tokens/s": "tokens_per_s",
}
_PANELS = {"Mean job duration": "mean_s", "99th percentile of job duration": "p99_s"}
_TICKS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 6, 10)
_VARIANTS = (PURPLE, GREEN, ORANGE, SKY, BLUE, VERMILLION)


def tables(found: Findings, document: Document) -> str:
    """Conditions, geometric means over the pressured regimes, and each regime."""
    config = document["config"]
    machine = config.get("machine", {})
    lines = [
        "# Study of policies",
        "",
        f"{config.get('num_jobs')} jobs a unit of {config.get('trace') or config.get('workload')} "
        f"(part: {config.get('part')}), at most {config.get('max_turns')} turns, on a simulated "
        f"{machine.get('name')} with {machine.get('model')}; seeds "
        f"{', '.join(map(str, document['seeds']))}; commit {', '.join(document['commits'])}.",
    ]
    if document["failed_units"]:
        lines.append(f"{len(document['failed_units'])} of {document['units']} units failed.")
    for to in (STOCK, RELEASED):
        means = found.geometric_means(to)
        for tools, group in means.groupby(level="tools", sort=False):
            title = f"{tools} tools, over {to}: geometric means over pressured regimes"
            rows = [
                [policy, int(row["n"]), *(_number(row[key]) for key in _RATIOS.values())]
                for (_, policy), row in group.iterrows()
            ]
            lines += ["", f"## {title}", "", markdown_table(["policy", "regimes", *_RATIOS], rows)]
            if group["n"].nunique() > 1:
                lines += ["", "Means over different numbers of regimes are not to be compared."]
    lines += _regimes(found)
    titles = ["tools", "blocks", "memory jobs/s", "compute jobs/s", "contexts that fit"]
    rows = [
        [
            entry["tools"],
            f"{entry['pool_blocks']:,}",
            f"{entry['memory_jps']:.4f}",
            f"{entry['compute_jps']:.4f}",
            f"{entry['num_resident']:.1f}",
        ]
        for entry in document["one_x"]
    ]
    return "\n".join([*lines, "", "## 1x", "", markdown_table(titles, rows)]) + "\n"


def _regimes(found: Findings) -> Iterator[str]:
    ratios = dict(list(found.ratios().groupby(level=[*REGIME, "policy"], sort=False)))
    yield from ("", f"## Each regime: ratios to {STOCK} with the same jobs")
    for regime, rows in found.frame.groupby(REGIME, sort=False):
        tools, pool, load = regime
        jps = rows["jps"].iloc[0]
        rate = "" if pd.isna(jps) else f" ({jps:.3g}/s)"
        share = found.recomputed_share.get(regime)
        pressure = "pressured" if regime in found.pressured else "no pressure"
        note = "" if share is None else f": {pressure} ({share:.1%} recomputed)"
        yield from ("", f"### {tools} tools, {pool:,} blocks, {load}{rate}{note}", "")
        table = [
            [
                policy,
                _number(own["mean_s"].mean(), ".1f"),
                *(_spread(ratios[*regime, policy][key]) for key in _RATIOS.values()),
                _number(own["hit_rate"].mean(), ".1%"),
                _number(own["preemptions"].mean(), ".0f"),
            ]
            for policy, own in rows.groupby("policy", sort=False)
        ]
        yield markdown_table(["policy", "mean s", *_RATIOS, "hits", "preempted"], table)


def _spread(values: pd.Series) -> str:
    known = values.dropna()
    if not len(known):
        return "-"
    mean = _number(geometric_mean(known))
    if known.min() == known.max():
        return mean
    return f"{mean} ({_number(known.min())}..{_number(known.max())})"


def _number(value: float, form: str = "") -> str:
    if pd.isna(value):
        return "-"
    return format(value, form or (".3f" if value < 2.0 else ".3g"))


def draw(found: Findings, document: Document, out: Path) -> list[Path]:
    """The figures that were written; OSError if that fails."""
    spread = found.ratios().groupby(level=[*REGIME, "policy"], sort=False)
    means, least, most = found.over_seeds(), spread.min(), spread.max()
    paths = []
    for tools in dict.fromkeys(tools for tools, *_ in found.regimes):
        regimes = [regime for regime in found.regimes if regime[0] == tools]
        names = [name for name in found.policies if name != STOCK]
        of_tools = {
            name: pd.MultiIndex.from_tuples([(*regime, name) for regime in regimes])
            for name in in_order(names)
        }
        if not any(means["mean_s"].reindex(places).notna().any() for places in of_tools.values()):
            continue
        width_in = max(7.0, 1.0 + 0.55 * len(regimes))
        with common_style():
            figure = new_figure(width_in, 3.0 * len(_PANELS) + 1.2)
            panels = figure.subplots(len(_PANELS), 1, sharex=True)
            for axes, (title, key) in zip(panels, _PANELS.items(), strict=True):
                _mark_regimes(axes, regimes, found.pressured)
                for (shift, its_look), (name, places) in zip(
                    _shifts_and_looks(list(of_tools)), of_tools.items(), strict=True
                ):
                    middle, low, high = (
                        table[key].reindex(places).to_numpy() for table in (means, least, most)
                    )
                    axes.errorbar(
                        np.arange(len(regimes)) + shift,
                        middle,
                        yerr=np.maximum(0.0, [middle - low, high - middle]),
                        label=name,
                        **{**its_look.line(), "linestyle": "none"},
                    )
                axes.set(title=f"{title}, {tools} tools", ylabel=f"times that of {STOCK}")
            labels = [f"{load}\n{pool:,}" for _, pool, load in regimes]
            panels[-1].set_xlim(-0.5, len(regimes) - 0.5)
            panels[-1].set_xticks(range(len(regimes)), labels, fontsize=FONT_PT - 2)
            panels[-1].set_xlabel("load, and blocks in the pool")
            legend_above(figure, panels)
            path = out / f"ratios-{re.sub(r'[^A-Za-z0-9_.-]', '-', tools)}.png"
            conditions = textwrap.fill(_conditions(document), int(width_in * 19))
            paths.append(save(figure, path, conditions=conditions))
    return paths


def _shifts_and_looks(policies: Sequence[str]) -> Iterator[tuple[float, Look]]:
    """Place of a policy's points in a regime; with settings of its own it has a look that no other
    policy of the figure has."""
    variants = [name for name in policies if "{" in name]
    for place, name in enumerate(policies):
        shift = 0.6 * ((place + 0.5) / len(policies) - 0.5)
        if name in variants:
            index = variants.index(name) % len(_VARIANTS)
            yield shift, Look(_VARIANTS[index], "<>pv^D"[index], is_hollow=True)
        else:
            yield shift, look(name)


def _mark_regimes(axes: Any, regimes: Sequence[Any], pressured: Sequence[Any]) -> None:
    """Axis of ratios, regimes without pressure in grey, a line between pools."""
    axes.axhline(1.0, color=GREY, linewidth=1.0, zorder=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", visible=False)
    for x, regime in enumerate(regimes):
        if regime not in pressured:
            axes.axvspan(x - 0.5, x + 0.5, color="#f2f2f2", zorder=0)
        if x and regime[1] != regimes[x - 1][1]:
            axes.axvline(x - 0.5, color=GREY, linewidth=0.8, linestyle=":")


def _conditions(document: Document) -> str:
    config = document["config"]
    return "; ".join(
        (
            f"on {config['machine']['name']}, simulated",
            f"model {config['machine']['model']}",
            f"workload {config['trace'] or config['workload']}, part {config['part']}",
            f"at most {config['max_turns']} turns",
            f"{config['num_jobs']} jobs in each run",
            f"seeds {', '.join(map(str, document['seeds']))}",
            f"commit {', '.join(document['commits'])}",
            "points: geometric mean over seeds; bars: least to largest seed",
            f"grey: no pressure ({STOCK} recomputes {PRESSURED_SHARE:.0%} or less)",
        )
    )
