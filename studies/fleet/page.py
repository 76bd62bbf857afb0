"""Tables and the figure of the fleet study, from its rows alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from agentkv.evals.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILLION,
    Look,
    common_style,
    new_figure,
    save,
)
from agentkv.evals.simulator.routers import ROUTERS
from agentkv.evals.tables import markdown_table

from ..units import Row
from .regimes import LOADS, POLICIES, SIZES, STICKY_SPILL

Place = tuple[int, float, bool, str]
"""Engines, load, whether one fails, policy."""
_LOOKS = {
    "round-robin": Look(GREY, "x", ":"),
    "least-loaded": Look(ORANGE, "^", "--"),
    "sticky": Look(BLUE, "s"),
    "sticky-spill": Look(VERMILLION, "D"),
    "prefix-aware": Look(GREEN, "v", "-."),
}
AS_GOOD = 1.01
"""Up to 1% slower counts as equally good: seeds differ by more."""


class Findings:
    """The rows that ended well, by place, router and seed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows: dict[Place, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
        for row in rows:
            if row["error"] is None:
                place = (row["engines"], row["load"], row["has_failure"], row["policy"])
                self.rows[place][row["router"]][row["seed"]] = row

    def seeds(self, place: Place) -> list[int]:
        """The seeds that every router of the place has played."""
        routers = ROUTERS if place[0] > 1 else (STICKY_SPILL,)
        played = [set(self.rows[place][router]) for router in routers]
        return sorted(set.intersection(*played))

    def figure(self, place: Place, router: str, key: str) -> float | None:
        """A number of a router, as the mean over seeds; None if it was not played."""
        name = router if place[0] > 1 else STICKY_SPILL
        seeds = self.seeds(place)
        return mean(self.rows[place][name][seed][key] for seed in seeds) if seeds else None

    def places(self, *, has_failure: bool) -> list[Place]:
        """The places that have a seed that all routers have played."""
        found = [place for place in sorted(self.rows) if place[2] == has_failure]
        return [place for place in found if self.seeds(place)]

    def beaten(self) -> list[tuple[Place, str, str, float]]:
        """Where sticky or least-loaded is better than sticky-spill: by which figure, how much."""
        found = []
        for place in self.places(has_failure=False) + self.places(has_failure=True):
            for key in ("mean_s", "p99_s"):
                ours = self.figure(place, STICKY_SPILL, key)
                for router in ("sticky", "least-loaded"):
                    theirs = self.figure(place, router, key)
                    if place[0] > 1 and ours and theirs and ours > AS_GOOD * theirs:
                        found.append((place, router, key, ours / theirs - 1.0))
        return found


def tables(found: Findings) -> dict[str, str]:
    """The parts of the page, by name."""
    return {
        "sizes": _table(found, has_failure=False),
        "failure": _table(found, has_failure=True),
        "beaten": _beaten(found),
    }


def _table(found: Findings, *, has_failure: bool) -> str:
    lines = []
    for place in found.places(has_failure=has_failure):
        engines, load, _, policy = place
        if engines == 1:
            continue
        cells = [_cell(found, place, router) for router in ROUTERS]
        head = [f"{load:g}", policy, str(engines), str(len(found.seeds(place)))]
        lines.append([*head, *cells])
    if not lines:
        return "Not played yet."
    lines.sort(key=lambda line: (line[0], POLICIES.index(line[1]), int(line[2])))
    return markdown_table(["jobs/s an engine", "policy", "engines", "n", *ROUTERS], lines, left=2)


def _cell(found: Findings, place: Place, router: str) -> str:
    shown: Any = {key: found.figure(place, router, key) for key in ("mean_s", "p99_s", "hit_rate")}
    return f"{shown['mean_s']:.1f} / {shown['p99_s']:.0f} / {shown['hit_rate']:.0%}"


def _beaten(found: Findings) -> str:
    lines = []
    for (engines, load, has_failure, policy), router, key, share in found.beaten():
        failure = ", one fails" if has_failure else ""
        what = {"mean_s": "mean", "p99_s": "p99"}[key]
        where = f"{engines} engines at {load:g} under {policy}{failure}"
        lines.append(f"- {where}: the {what} is {share:.1%} above that of `{router}`.")
    return "\n".join(lines) or "Nowhere."


def draw(found: Findings, path: Path) -> None:
    """Mean and p99 against the number of engines, a column for each load and policy."""
    columns = [(load, policy) for policy in POLICIES for load in LOADS]
    with common_style():
        figure = new_figure(2.6 * len(columns), 5.0)
        panels = figure.subplots(2, len(columns), sharex=True, squeeze=False)
        for column, (load, policy) in enumerate(columns):
            for row, (key, title) in enumerate((("mean_s", "mean"), ("p99_s", "p99"))):
                axes = panels[row][column]
                for router in ROUTERS:
                    line = _line(found, load, policy, router, key)
                    axes.plot(
                        list(line), list(line.values()), label=router, **_LOOKS[router].line()
                    )
                axes.set_xscale("log", base=2)
                axes.set_xticks(SIZES, [str(size) for size in SIZES])
                axes.set_ylim(0.0, 1.1 * axes.get_ylim()[1])
                axes.set_title(f"{policy}, {load:g} jobs/s" if row == 0 else "")
                axes.set_xlabel("engines" if row else "")
                axes.set_ylabel(f"{title} duration, s" if column == 0 else "")
        panels[0][0].legend(fontsize="small")
        save(figure, path, conditions="Simulated H100s, Llama-3.1-8B; load is per engine.")


def _line(found: Findings, load: float, policy: str, router: str, key: str) -> Mapping[int, float]:
    line = {size: found.figure((size, load, False, policy), router, key) for size in SIZES}
    return {size: value for size, value in line.items() if value is not None}
