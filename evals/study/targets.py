"""What our policy is to reach, each as a line: the limit, what was measured, met or not.

Source: the project's goals for the policy `agentkv`: geometric means over the pressured regimes,
light load, small pools. Its cost and its order on a real server are measured elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .ideals import ANY_ORDER, IN_ORDER
from .regimes import (
    LOSSLESS,
    PAPER,
    RATIO_KEYS,
    RELEASED,
    STOCK,
    UNLIMITED,
    Regime,
    geometric_mean,
)

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
