"""Ratios between policies, and their ranks, from the rows of a tournament.

A ratio is taken seed by seed against another policy with the same jobs, then as geometric mean over
seeds. A seed of a regime counts once every policy has played it; a failed run has no ratios. The
oracle wins nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from statistics import fmean, geometric_mean
from typing import NamedTuple

from ..policy_grid.findings import PRESSURED_SHARE
from ..units import Row
from .regimes import (
    BOUNDS,
    DEFAULT_LIMIT_S,
    LIMITS_S,
    ORACLE,
    OURS,
    SETTINGS,
    STOCK,
    SWEPT_POOLS,
    Unit,
    units,
    with_limit,
)

NEAR = 1.02
"""A mean within 2% of the best counts as the best."""


class Regime(NamedTuple):
    workload: str
    pool: str
    has_tier: bool


class Findings:
    """The rows of a tournament as ratios."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row["unit"]: row for row in rows}
        self.seeds = sorted({row["seed"] for row in rows})
        blocks: dict[tuple[Regime, int], list[Unit]] = {}
        for unit in units(("main", "tier"), self.seeds, tuple(SETTINGS)):
            regime = Regime(unit.workload, unit.pool, unit.has_tier)
            blocks.setdefault((regime, unit.seed), []).append(unit)
        self.played: dict[Regime, dict[int, dict[str, Row]]] = {}
        """Rows by regime, seed and policy."""
        for (regime, seed), block in blocks.items():
            if all(unit.key in self.rows for unit in block):
                found = {unit.name: self.rows[unit.key] for unit in block}
                done = {name: row for name, row in found.items() if row["error"] is None}
                self.played.setdefault(regime, {})[seed] = done
        self.policies = list(dict.fromkeys(row["policy"] for row in rows))
        self.pressured = [regime for regime in self.played if self._is_pressured(regime)]

    def _is_pressured(self, regime: Regime) -> bool:
        """True if stock without a tier computes more than a fifth of its tokens again."""
        runs = self.played.get(regime._replace(has_tier=False), {}).values()
        return fmean([run[STOCK]["recomputed_share"] for run in runs] or [0.0]) > PRESSURED_SHARE

    def ratios(self, regime: Regime, policy: str, key: str, to: str = STOCK) -> list[float]:
        """A policy's figure over another's, for each seed that both have played."""
        runs = self.played[regime].values()
        both = [(run[policy][key], run[to][key]) for run in runs if {policy, to} <= run.keys()]
        return [mine / its for mine, its in both if mine and its]

    def over(self, regimes: Iterable[Regime], policy: str, key: str) -> float | None:
        """Geometric mean over seeds, then regimes, of ratios to stock; None if one is unknown."""
        ratios = [self.ratios(regime, policy, key) for regime in regimes]
        if not ratios or not all(ratios):
            return None
        return geometric_mean([geometric_mean(of_seeds) for of_seeds in ratios])

    def standing(self, regimes: Sequence[Regime], key: str = "mean_s") -> dict[str, float]:
        """Ratios to stock of all but the oracle, the best first."""
        found = {name: self.over(regimes, name, key) for name in self.policies if name != ORACLE}
        known = {name: ratio for name, ratio in found.items() if ratio is not None}
        return dict(sorted(known.items(), key=lambda item: item[1]))

    def near_best(self, regimes: Sequence[Regime], key: str = "mean_s") -> list[str]:
        """Policies with the best mean, or another best figure, or within 2% of it."""
        standing = self.standing(regimes, key)
        return [name for name, ratio in standing.items() if ratio <= NEAR * min(standing.values())]

    def behind_best(self, regime: Regime, key: str) -> float:
        """Our figure over the best one."""
        standing = self.standing([regime], key)
        return standing[OURS] / min(standing.values())

    def ahead_of_ours(self, regime: Regime) -> dict[str, float]:
        """Policies with a mean more than 2% below ours, and below it on every seed, over ours."""
        ratios = {
            name: self.ratios(regime, name, "mean_s", OURS) for name in self.standing([regime])
        }
        means = {name: geometric_mean(each) for name, each in ratios.items() if max(each) < 1.0}
        return {name: mean for name, mean in means.items() if mean < 1.0 / NEAR}

    def best_rule(self, regimes: Sequence[Regime]) -> tuple[str, float]:
        """Of all but ours and stock, the policy with the best mean over these regimes."""
        standing = self.standing(regimes)
        return next((name, each) for name, each in standing.items() if name not in (OURS, STOCK))

    def sweep(self, policy: str) -> tuple[int, dict[int, tuple[float, float]]]:
        """Number of runs, and mean and p99 over stock's by the limit, of the same jobs for all."""
        names = {limit_s: with_limit(policy, limit_s) for limit_s in LIMITS_S}
        names[DEFAULT_LIMIT_S] = policy
        pairs: list[dict[int, list[float]]] = []
        for (workload, pool), seed in product(SWEPT_POOLS, self.seeds):
            keys = (
                Unit(workload, pool, False, seed, name).key for name in (STOCK, *names.values())
            )
            stock, *limited = (self.rows.get(key, {"error": "not played"}) for key in keys)
            if all(row["error"] is None for row in (stock, *limited)):
                ratios = [[row[key] / stock[key] for key in ("mean_s", "p99_s")] for row in limited]
                pairs.append(dict(zip(names, ratios, strict=True)))
        found = {}
        for limit_s in names if pairs else ():
            means, tails = zip(*(pair[limit_s] for pair in pairs), strict=True)
            found[limit_s] = (geometric_mean(means), geometric_mean(tails))
        return len(pairs), found

    def bounded(self) -> tuple[int, dict[str, float]]:
        """Number of runs under pressure that were played without loss, too, and means over stock's
        of the same jobs, of all who have played them."""
        ratios: dict[str, list[float]] = {}
        for regime in (regime for regime in self.pressured if not regime.has_tier):
            for seed, run in self.played[regime].items():
                keys = {name: Unit(*regime, seed, name).key for name in BOUNDS}
                bounds = {name: self.rows[key] for name, key in keys.items() if key in self.rows}
                done = {name: row for name, row in bounds.items() if row["error"] is None}
                if len(done) == len(BOUNDS):
                    for name, row in {**run, **done}.items():
                        ratios.setdefault(name, []).append(row["mean_s"] / run[STOCK]["mean_s"])
        num_runs = len(ratios.get(STOCK, ()))
        known = {name: each for name, each in ratios.items() if len(each) == num_runs}
        return num_runs, {name: geometric_mean(each) for name, each in known.items()}

    @property
    def commits(self) -> list[str]:
        return sorted({str(row["commit"]) for row in self.rows.values()})
