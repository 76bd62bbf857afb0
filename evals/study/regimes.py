"""Rows put together by regime: what a policy comes to there, by itself and against another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

STOCK, RELEASED, PAPER = "fcfs", "continuum:released", "continuum:paper"
UNLIMITED, LOSSLESS = "fcfs@infinite", "agentkv@lossless"
PRESSURED_SHARE = 0.2
"""Of the tokens that stock computes, what it had computed before; a regime with more is pressured.
Chosen in a gap: of the 42 default regimes (swebench-mini, seed 0) 13 had at most 6.3%, where not
even an infinite pool saved 1% (three tried), and 29 had 76% or more."""
RATIO_KEYS = (
    "mean_s",
    "p50_s",
    "p90_s",
    "p99_s",
    "max_s",
    "slowdown_p99",
    "slowdown_max",
    "ttft_first_p99_s",
    "ttft_first_max_s",
    "ttft_continuing_p99_s",
    "ttft_continuing_max_s",
    "tokens_per_s",
)
VALUE_KEYS = (*RATIO_KEYS, "hit_rate", "preemptions", "recomputed_tokens", "completed")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """A mean over seeds, the least and the largest of them, and how many there are."""

    mean: float
    least: float
    most: float
    num: int

    def as_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "least": self.least, "most": self.most, "n": self.num}


def geometric_mean(values: Sequence[float]) -> float | None:
    """None of nothing; 0 if one of them is."""
    if not values:
        return None
    if min(values) <= 0.0:
        return 0.0
    return math.exp(fmean(map(math.log, values)))


@dataclass(frozen=True, slots=True)
class Regime:
    """One tools x pool x load; `rows` by policy and seed, those that failed left out."""

    tools: str
    pool_blocks: int
    load: str
    jps: float | None
    multiple: float | None
    concurrency: int | None
    rows: Mapping[str, Mapping[int, Row]]

    def value(self, policy: str, key: str) -> Spread | None:
        """Over the seeds that have it."""
        found = [row[key] for row in self.rows.get(policy, {}).values() if row[key] is not None]
        return Spread(fmean(found), min(found), max(found), len(found)) if found else None

    def ratio(self, policy: str, key: str, *, to: str = STOCK) -> Spread | None:
        """Seed by seed against the other policy with the same jobs; the mean is geometric."""
        found = []
        base = self.rows.get(to, {})
        for seed, row in self.rows.get(policy, {}).items():
            other = base.get(seed)
            if other is not None and row[key] is not None and other[key]:
                found.append(row[key] / other[key])
        mean = geometric_mean(found)
        return None if mean is None else Spread(mean, min(found), max(found), len(found))

    @property
    def recomputed_share(self) -> float | None:
        """Of all tokens that stock computes here, those it had computed before."""
        rows = self.rows.get(STOCK, {}).values()
        computed = sum(row["counters"]["computed_tokens"] for row in rows)
        return sum(row["recomputed_tokens"] for row in rows) / computed if computed else None

    @property
    def is_pressured(self) -> bool:
        """Whether stock recomputes more than PRESSURED_SHARE; looks at nothing else."""
        share = self.recomputed_share
        return share is not None and share > PRESSURED_SHARE

    @property
    def load_label(self) -> str:
        rate = "" if self.jps is None else f" ({self.jps:.3g}/s)"
        return f"{self.load}{rate}"

    @property
    def label(self) -> str:
        return f"{self.tools}, {self.pool_blocks:,} blocks, {self.load}"


def regimes_of(rows: Iterable[Row]) -> list[Regime]:
    """By tools in the order they came, pool, and load: open, closed, bursts, each from low on."""
    found: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = {}
    tools_order: list[str] = []
    for row in rows:
        if row["tools"] not in tools_order:
            tools_order.append(row["tools"])
        if row["error"] is None:
            place = tuple(row[name] for name in _PLACE)
            found.setdefault(place, {}).setdefault(row["policy"], {})[row["seed"]] = row
    regimes = [
        Regime(**dict(zip(_PLACE, place, strict=True)), rows=by_policy)
        for place, by_policy in found.items()
    ]
    return sorted(regimes, key=lambda regime: (tools_order.index(regime.tools), _order(regime)))


_PLACE = ("tools", "pool_blocks", "load", "jps", "multiple", "concurrency")


def _order(regime: Regime) -> tuple[Any, ...]:
    kind = 1 if regime.concurrency else 2 if regime.load.startswith("burst") else 0
    return regime.pool_blocks, kind, regime.multiple or 0.0, regime.concurrency or 0, regime.load


def over_regimes(
    regimes: Iterable[Regime], policy: str, key: str, *, to: str = STOCK
) -> tuple[float | None, int]:
    """The geometric mean of a policy's ratios over the regimes that have one, and their number."""
    ratios = [regime.ratio(policy, key, to=to) for regime in regimes]
    means = [ratio.mean for ratio in ratios if ratio is not None]
    return geometric_mean(means), len(means)
