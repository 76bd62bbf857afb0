"""Rows put together by regime: what a policy comes to there, by itself and against another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from .ideals import ANY_ORDER, IN_ORDER

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


SUBJECT = "agentkv"
LIGHT = "light"
"""The load under which everything has to be as with stock."""
LIGHT_SHARE = 0.01
"""How far from stock counts as the same; also what "never worse" allows for chance."""


@dataclass(frozen=True, slots=True)
class Target:
    """`limit` is the most allowed, None where a number is only shown; `value` None if unknown.

    `num_regimes` went into the value; `worst` tells in which it was worst.
    """

    name: str
    limit: float | None
    value: float | None
    num_regimes: int
    worst: str

    @property
    def is_met(self) -> bool | None:
        if self.limit is None or self.value is None:
            return None
        return self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}


@dataclass(frozen=True, slots=True)
class _Mean:
    """A limit on the geometric mean over pressured regimes of `key`, as a ratio to `to`, or to
    `or_to` in regimes where that is the larger."""

    title: str
    key: str
    to: str
    limit: float | None
    or_to: str | None = None

    @property
    def over(self) -> str:
        return self.to if self.or_to is None else f"{self.to}, or {self.or_to} where that is slower"

    def ratio(self, regime: Regime, policy: str) -> float | None:
        """None if the regime lacks one of them."""
        others = [self.to] if self.or_to is None else [self.to, self.or_to]
        ratios = [regime.ratio(policy, self.key, to=other) for other in others]
        known = [ratio.mean for ratio in ratios if ratio is not None]
        return min(known) if len(known) == len(others) else None


_BY_TOOLS: Mapping[str, Sequence[_Mean]] = {
    "recorded": (
        _Mean("mean JCT", "mean_s", STOCK, 0.40),
        _Mean("p99 JCT", "p99_s", STOCK, 0.55),
        _Mean("mean JCT", "mean_s", RELEASED, 0.92),
        _Mean("p99 JCT", "p99_s", RELEASED, 0.97),
    ),
    "longtail": (
        _Mean("mean JCT", "mean_s", STOCK, 0.50),
        _Mean("p99 JCT", "p99_s", STOCK, 0.70),
        _Mean("mean JCT", "mean_s", RELEASED, 0.75),
        _Mean("p99 JCT", "p99_s", RELEASED, 0.85),
    ),
}
_ALWAYS = (
    _Mean("mean JCT", "mean_s", UNLIMITED, 1.3),
    _Mean("max JCT", "max_s", PAPER, 1.0),
    _Mean("max JCT", "max_s", RELEASED, 1.0),
    _Mean("max slowdown", "slowdown_max", STOCK, 1.0),
    _Mean("continuing TTFT p99", "ttft_continuing_p99_s", STOCK, 0.25),
    _Mean("continuing TTFT max", "ttft_continuing_max_s", STOCK, 1.0),
    _Mean("first-turn TTFT p99", "ttft_first_p99_s", STOCK, None),
    _Mean("first-turn TTFT max", "ttft_first_max_s", STOCK, None),
    _Mean("mean JCT", "mean_s", IN_ORDER, None),
    _Mean("mean JCT", "mean_s", ANY_ORDER, None),
    _Mean("mean JCT", "mean_s", IN_ORDER, None, or_to=UNLIMITED),
    _Mean("p99 JCT", "p99_s", ANY_ORDER, None),
    _Mean("p99 JCT", "p99_s", IN_ORDER, None, or_to=UNLIMITED),
    _Mean("max JCT", "max_s", ANY_ORDER, None),
    _Mean("mean JCT", "mean_s", LOSSLESS, None),
    _Mean("p99 JCT", "p99_s", LOSSLESS, None),
    _Mean("continuing TTFT p99", "ttft_continuing_p99_s", LOSSLESS, None),
)


def is_subject(policy: str) -> bool:
    """Whether the targets are for this policy: ours, with any settings, on the real pool."""
    return policy.startswith(SUBJECT) and "@" not in policy


def targets(regimes: Sequence[Regime], policy: str) -> list[Target]:
    """All of them, in the order of the goals."""
    return [
        *_pressured(regimes, policy),
        _light_ratios(regimes, policy),
        _light_preemptions(regimes, policy),
        _small_pool(regimes, policy),
        _no_pressure(regimes, policy),
    ]


def _pressured(regimes: Sequence[Regime], policy: str) -> Iterator[Target]:
    for tools in dict.fromkeys(regime.tools for regime in regimes):
        own = [regime for regime in regimes if regime.tools == tools and regime.is_pressured]
        for mean in (*_BY_TOOLS.get(tools, ()), *_ALWAYS):
            ratios = [(mean.ratio(regime, policy), regime.label) for regime in own]
            known = [(ratio, label) for ratio, label in ratios if ratio is not None]
            if not known and mean.limit is None:
                continue
            value = geometric_mean([ratio for ratio, _ in known])
            name = f"{tools} tools: {mean.title} over {mean.over}"
            yield Target(name, mean.limit, value, len(known), _worst(known))


def _light_ratios(regimes: Sequence[Regime], policy: str) -> Target:
    """The largest distance from stock, of any figure."""
    light = [regime for regime in regimes if regime.load == LIGHT]
    found = [
        (abs(ratio.mean - 1.0), f"{regime.label}, {key}")
        for regime in light
        for key in RATIO_KEYS
        if (ratio := regime.ratio(policy, key)) is not None
    ]
    name = "light load: largest distance of any figure from stock"
    return _largest(name, LIGHT_SHARE, found, len(light))


def _light_preemptions(regimes: Sequence[Regime], policy: str) -> Target:
    light = [regime for regime in regimes if regime.load == LIGHT]
    found = [
        (float(row["preemptions"] - stock["preemptions"]), f"{regime.label}, seed {seed}")
        for regime in light
        for seed, row in regime.rows.get(policy, {}).items()
        if (stock := regime.rows.get(STOCK, {}).get(seed)) is not None
    ]
    return _largest("light load: preemptions beyond stock's", 0.0, found, len(light))


def _small_pool(regimes: Sequence[Regime], policy: str) -> Target:
    """The worst regime of the smallest pool, over the better of stock and the released rules."""
    smallest = min((regime.pool_blocks for regime in regimes), default=0)
    found = []
    for regime in regimes:
        ratios = [regime.ratio(policy, "mean_s", to=to) for to in (STOCK, RELEASED)]
        known = [ratio.mean for ratio in ratios if ratio is not None]
        if regime.pool_blocks == smallest and len(known) == len(ratios):
            found.append((max(known), regime.label))
    name = f"{smallest:,} blocks: mean JCT over the better of {STOCK} and {RELEASED}"
    return _largest(name, 1.0 + LIGHT_SHARE, found, len(found))


def _no_pressure(regimes: Sequence[Regime], policy: str) -> Target:
    """What switching off when nothing is at stake is worth; light load is among these."""
    found = [
        (ratio.mean, regime.label)
        for regime in regimes
        if not regime.is_pressured and (ratio := regime.ratio(policy, "mean_s")) is not None
    ]
    return _largest(f"no pressure: mean JCT over {STOCK}, worst regime", None, found, len(found))


def _largest(
    name: str, limit: float | None, found: Sequence[tuple[float, str]], num_regimes: int
) -> Target:
    value = max(found)[0] if found else None
    return Target(name, limit, value, num_regimes if found else 0, _worst(found))


def _worst(found: Sequence[tuple[float, str]]) -> str:
    if not found:
        return ""
    value, place = max(found)
    return f"{value:.3f} at {place}"


BASELINES = (STOCK, RELEASED)


def findings(rows: Sequence[Row]) -> dict[str, Any]:
    """All there is to say, from the rows alone."""
    regimes = regimes_of(rows)
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    failed = [row for row in rows if row["error"] is not None]
    played = [row for row in rows if row["error"] is None]
    cpu_s = sum(row["cpu_s"] for row in played)
    return {
        "config": rows[0]["config"] if rows else {},
        "policies": policies,
        "seeds": sorted({row["seed"] for row in rows}),
        "commits": sorted({str(row["commit"]) for row in rows}),
        "codes": sorted({row["code"] for row in rows}),
        "units": len(rows),
        "failed_units": [_failure(row) for row in failed],
        "jobs_per_cpu_s": sum(row["jobs"] for row in played) / cpu_s if cpu_s else None,
        "one_x": _one_x(rows),
        "pressured_share": PRESSURED_SHARE,
        "targets": {
            policy: [target.as_dict() for target in targets(regimes, policy)]
            for policy in policies
            if is_subject(policy)
        },
        "geometric_means": [
            entry for to in BASELINES for entry in _geometric_means(regimes, policies, to)
        ],
        "regimes": [_regime_entry(regime, policies) for regime in regimes],
    }


def _failure(row: Row) -> dict[str, Any]:
    names = ("tools", "pool_blocks", "load", "seed", "policy", "error")
    return {name: row[name] for name in names}


def _one_x(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rates that multiples are of, with what bounds them."""
    found = {(row["tools"], row["pool_blocks"]): row["one_x"] for row in rows}
    return [
        {"tools": tools, "pool_blocks": pool_blocks, **found[tools, pool_blocks]}
        for tools, pool_blocks in sorted(found)
    ]


def _geometric_means(
    regimes: Sequence[Regime], policies: Sequence[str], to: str
) -> list[dict[str, Any]]:
    entries = []
    for tools in dict.fromkeys(regime.tools for regime in regimes):
        pressured = [regime for regime in regimes if regime.tools == tools and regime.is_pressured]
        for policy in policies:
            means = {key: over_regimes(pressured, policy, key, to=to) for key in RATIO_KEYS}
            num = max(count for _, count in means.values())
            if num:
                ratios = {key: mean for key, (mean, _) in means.items()}
                entries.append({"to": to, "tools": tools, "policy": policy, "n": num, **ratios})
    return entries


def _regime_entry(regime: Regime, policies: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for policy in policies:
        if policy not in regime.rows:
            continue
        values = {key: regime.value(policy, key) for key in VALUE_KEYS}
        ratios = {key: regime.ratio(policy, key) for key in RATIO_KEYS}
        found[policy] = {
            "values": {key: value and value.as_dict() for key, value in values.items()},
            "ratios": {key: ratio and ratio.as_dict() for key, ratio in ratios.items()},
        }
    return {
        "tools": regime.tools,
        "pool_blocks": regime.pool_blocks,
        "load": regime.load,
        "load_label": regime.load_label,
        "jps": regime.jps,
        "recomputed_share": regime.recomputed_share,
        "is_pressured": regime.is_pressured,
        "policies": found,
    }
