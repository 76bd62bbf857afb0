"""Tables of a study from its rows alone: each figure as a ratio, seed by seed, to other policies'.

A cell is the median over the seeds with the least and the most. The table of all regimes has the
geometric mean over the pressured ones, which all weigh the same, seed by seed. Knows nothing of how
rows are made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from agentkv.evals.tables import markdown_table

from .plan import Study

PRESSURED_SHARE = 0.2
"""A regime is pressured if stock had computed more than this share of its tokens before. In a gap:
of 42 regimes (policy_grid/method.md) 13 had at most 6.3%, where not even an infinite pool saved 1%
(three tried), and 29 had 76% or more."""
STOCK = "fcfs"
MARKS = "<!-- tables -->", "<!-- end of tables -->"
Rows = Mapping[tuple[str, str, int], Mapping[str, Any]]
"""Rows that did not fail, by regime, policy and seed."""


def index(rows: Iterable[Mapping[str, Any]]) -> Rows:
    return {
        (row["regime"], row["policy"], row["seed"]): row for row in rows if row["error"] is None
    }


def names(rows: Rows, place: int) -> list[Any]:
    """The regimes (0), policies (1) or seeds (2) that there are, in the order of the rows."""
    return list(dict.fromkeys(key[place] for key in rows))


def ratios(rows: Rows, regime: str, policy: str, over: str, figure: str) -> dict[int, float]:
    """By seed, a policy's figure over that of another one with the same jobs."""
    found = {}
    for seed in names(rows, 2):
        ours, theirs = rows.get((regime, policy, seed)), rows.get((regime, over, seed))
        if ours and theirs and ours.get(figure) is not None and theirs.get(figure):
            found[seed] = ours[figure] / theirs[figure]
    return found


def pressured(rows: Rows) -> list[str]:
    """The regimes in which stock computes much again."""
    found = []
    for regime in names(rows, 0):
        shares = [
            row["recomputed_share"]
            for (place, policy, _), row in rows.items()
            if (place, policy) == (regime, STOCK)
        ]
        if shares and fmean(shares) > PRESSURED_SHARE:
            found.append(regime)
    return found


def over_regimes(
    rows: Rows, regimes: Sequence[str], policy: str, over: str, figure: str
) -> dict[int, float]:
    """By seed, the geometric mean of the ratios in these regimes, where no seed lacks one."""
    each = [ratios(rows, regime, policy, over, figure) for regime in regimes]
    seeds = set.intersection(*map(set, each)) if each else set()
    return {
        seed: math.exp(fmean(math.log(found[seed]) for found in each)) for seed in sorted(seeds)
    }


def spread(values: Sequence[float]) -> str:
    """The median, with the least and the most; `-` for none."""
    if not values:
        return "-"
    middle = f"{median(values):.3f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3f}-{max(values):.3f})"


def tables(study: Study, rows: Rows) -> str:
    """A table for each policy that others are held against: all pressured regimes, then each."""
    parts = []
    together = pressured(rows)
    for over in study.over:
        parts.append(f"### Over `{over}`")
        places = {regime: [regime] for regime in names(rows, 0)}
        if len(together) > 1:
            title = f"{len(together)} regimes short of memory together"
            places = {title: together, **places}
        for title, regimes in places.items():
            lines = _lines(study, rows, regimes, over)
            if lines:
                header = ["policy", "n", *(name.removesuffix("_s") for name in study.figures)]
                parts.append(f"**{title}**\n\n{markdown_table(header, lines)}")
    return "\n\n".join(parts) + "\n"


def _lines(study: Study, rows: Rows, regimes: Sequence[str], over: str) -> list[list[str]]:
    lines = []
    for policy in names(rows, 1):
        found = [over_regimes(rows, regimes, policy, over, figure) for figure in study.figures]
        num_seeds = max(map(len, found))
        if num_seeds:
            cells = [spread(list(each.values())) for each in found]
            lines.append([f"`{policy}`", str(num_seeds), *cells])
    return lines


def filled(page: str, found: str) -> str:
    """The page with the tables between its marks; as it is without them."""
    begin, end = MARKS
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{found}\n{end}", page)
