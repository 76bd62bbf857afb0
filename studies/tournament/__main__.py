"""`python -m studies.tournament`: the table of README.md, and tournament.png, from rows alone."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean, median

from matplotlib.figure import Figure

from agentkv.evals.figures import BLUE, GREY, VERMILLION, common_style, save
from agentkv.evals.rows import write_whole
from agentkv.evals.tables import markdown_table
from studies.grid.play import read_units
from studies.grid.report import Rows, index, names, over_regimes, pressured, ratios

FOLDER = Path(__file__).parent
STOCK, OURS, RELEASED = "fcfs", "agentkv", "continuum:released"
COLOURS = {OURS: BLUE, RELEASED: VERMILLION}
NEAR = 0.02
"""A mean within this share of the best counts as the best."""


def main() -> None:
    rows = index(read_units(FOLDER / "rows.jsonl"))
    page = FOLDER / "README.md"
    made = f"{over_all(rows)}\n\n{by_regime(rows)}"
    marks = "<!-- made -->", "<!-- end -->"
    text = re.sub(
        f"{marks[0]}.*{marks[1]}",
        lambda _: f"{marks[0]}\n\n{made}\n\n{marks[1]}",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    write_whole(page, text)
    draw(rows, FOLDER / "tournament.png")


def mean_of(rows: Rows, regime: str, policy: str, figure: str = "mean_s") -> float | None:
    """Median over the seeds of a policy's figure over stock's."""
    found = ratios(rows, regime, policy, STOCK, figure)
    return median(found.values()) if found else None


def spread(rows: Rows, regime: str, policy: str, figure: str = "mean_s") -> str:
    """That median as percent, with the least and the most."""
    found = sorted(100.0 * ratio for ratio in ratios(rows, regime, policy, STOCK, figure).values())
    return f"{median(found):.0f}% ({found[0]:.0f} to {found[-1]:.0f})" if found else "-"


def best_other(rows: Rows, regime: str) -> str:
    """The policy but ours with the lowest mean, stock included."""
    means = {name: mean_of(rows, regime, name) for name in names(rows, 1) if name != OURS}
    known = {name: mean for name, mean in means.items() if mean is not None}
    best: str = min(known, key=known.__getitem__)
    return best


def by_regime(rows: Rows) -> str:
    """A line a regime: ours, the released rules, and the best of all others."""
    lines = []
    for regime in names(rows, 0):
        best = best_other(rows, regime)
        lines.append(
            [
                regime,
                str(len(ratios(rows, regime, OURS, STOCK, "mean_s"))),
                spread(rows, regime, OURS),
                spread(rows, regime, OURS, "p99_s"),
                spread(rows, regime, RELEASED),
                f"`{best}` {spread(rows, regime, best)}",
            ]
        )
    header = ["regime", "seeds", "`agentkv`, mean", "its p99", f"`{RELEASED}`, mean", "best other"]
    return markdown_table(header, lines)


def over_all(rows: Rows) -> str:
    """A line a policy: geometric means over the regimes short of memory that all have."""
    short = [
        regime
        for regime in pressured(rows)
        if {place[1] for place in rows if place[0] == regime} == set(names(rows, 1))
    ]
    best = {
        regime: min(mean_of(rows, regime, name) or 9.9 for name in names(rows, 1))
        for regime in short
    }
    lines = []
    for policy in names(rows, 1):
        cells, order = [], 0.0
        for figure in ("mean_s", "p99_s"):
            found = sorted(over_regimes(rows, short, policy, STOCK, figure).values())
            order = order or fmean(found)
            cells.append(
                f"{100 * median(found):.0f}% ({100 * found[0]:.0f} to {100 * found[-1]:.0f})"
            )
        near = sum(
            (mean_of(rows, each, policy) or 9.9) <= (1 + NEAR) * best[each] for each in short
        )
        lines.append((order, [f"`{policy}`", *cells, f"{near} of {len(short)}"]))
    header = ["policy", "mean, of `fcfs`", "p99, of `fcfs`", "within 2% of the best mean"]
    return markdown_table(header, [line for _, line in sorted(lines)])


def draw(rows: Rows, path: Path) -> None:
    """A dot a policy in each regime, with the range over the seeds for ours."""
    regimes = names(rows, 0)
    with common_style():
        figure = Figure(figsize=(8.0, 0.26 * len(regimes) + 1.2), layout="constrained")
        axes = figure.subplots()
        for place, regime in enumerate(reversed(regimes)):
            for policy in names(rows, 1):
                found = list(ratios(rows, regime, policy, STOCK, "mean_s").values())
                if found:
                    colour = COLOURS.get(policy, GREY)
                    size, layer = (30, 3) if policy in COLOURS else (12, 2)
                    axes.scatter(median(found), place, s=size, color=colour, zorder=layer)
                if found and policy == OURS:
                    axes.plot([min(found), max(found)], [place, place], color=BLUE, linewidth=1.2)
        axes.axvline(1.0, color=GREY, linewidth=0.8)
        axes.set_yticks(range(len(regimes)), list(reversed(regimes)))
        axes.set(
            xlabel="mean job, of fcfs's", title="agentkv (blue), continuum:released (red), others"
        )
        save(figure, path, conditions=f"{len(rows)} simulations")


if __name__ == "__main__":
    main()
