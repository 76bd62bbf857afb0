"""Prediction: a distribution of a command's duration, and what it means for a pin.

The policies read `speed`, `ttl_s` and `p_over`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, Protocol

Speed = Literal["fast", "slow", "uncertain"]

FAST_S = 1.0
"""A command is fast if it ends within this many seconds. Source: ContextServe."""
SLOW_S = 5.0
"""A command is slow if it runs for longer than this many seconds. Source: ContextServe."""
SURE = 0.85
"""Probability above which a command is called fast or slow. Source: ContextServe."""
TTL_SHARE = 0.9
"""Share of its runs that a fast command's pin outlasts. Source: ContextServe."""
ROUND_TRIP_S = 1.0
"""A fast command's pin outlasts its run by the trip to the client and back."""
UNCERTAIN_TTL_S = 2.0
"""TTL of an uncertain command unless another rule has a better one: Continuum's at cold start."""


class Distribution(Protocol):
    """A distribution of durations in seconds."""

    def p_over(self, seconds: float) -> float:
        """Return the probability, 0 to 1, that the command runs longer than `seconds`."""

    def quantile_s(self, share: float) -> float:
        """Return the seconds within which this share (0 to 1, exclusive) of the runs end."""


@dataclass(frozen=True, slots=True)
class AnyDistribution:
    """A distribution made of two functions."""

    p_over: Callable[[float], float]
    quantile_s: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class LogNormal:
    """ln(seconds) is normal, with the median exp(mean_ln)."""

    mean_ln: float
    spread_ln: float

    def p_over(self, seconds: float) -> float:
        if seconds <= 0:
            return 1.0
        distance = (math.log(seconds) - self.mean_ln) / self.spread_ln
        return 0.5 * math.erfc(distance / math.sqrt(2))

    def quantile_s(self, share: float) -> float:
        return math.exp(self.mean_ln + self.spread_ln * NormalDist().inv_cdf(share))

    def beyond(self, seconds: float) -> tuple[float, float]:
        """Return mean and variance of ln(duration) of the runs that take longer than `seconds`."""
        distance = (math.log(seconds) - self.mean_ln) / self.spread_ln
        if distance > 25.0:  # the first two terms of the asymptotic series
            excess = distance + 1.0 / distance
        else:
            density = math.exp(-distance * distance / 2) / math.sqrt(2 * math.pi)
            excess = density / (0.5 * math.erfc(distance / math.sqrt(2)))
        variance = max(1.0 + distance * excess - excess * excess, 0.0)
        return self.mean_ln + self.spread_ln * excess, self.spread_ln**2 * variance


ANY_COMMAND = LogNormal(mean_ln=math.log(1.4), spread_ln=1.47)
"""Any command of a coding agent. Source: on one Go project they have a median of 1.4 s and a 0.9
quantile of 9.2 s (traces of entireio/cli)."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a command will run.

    `speed` decides about a pin: "fast" is pinned for `ttl_s` seconds, "slow" frees at once (`ttl_s`
    is 0), "uncertain" leaves it to another rule. `source` names the layer that decided,
    `explanation` says why in a sentence.
    """

    speed: Speed
    p50_s: float
    p90_s: float
    ttl_s: float
    source: str
    explanation: str
    distribution: Distribution

    def p_over(self, seconds: float) -> float:
        """Return the probability, 0 to 1, that the command runs longer than `seconds`.

        Raises ValueError if `seconds` is NaN.
        """
        if math.isnan(seconds):
            raise ValueError(f"p_over: got {seconds!r}, allowed is a number of seconds")
        return self.distribution.p_over(seconds)


def verdict(distribution: Distribution, sure_fast: float = SURE, sure_slow: float = SURE) -> Speed:
    """Return the speed whose probability exceeds its limit, "uncertain" if neither does."""
    if 1.0 - distribution.p_over(FAST_S) > sure_fast:
        return "fast"
    return "slow" if distribution.p_over(SLOW_S) > sure_slow else "uncertain"


def prediction(
    speed: Speed, distribution: Distribution, fast_ttl_s: float, source: str, explanation: str
) -> Prediction:
    """Return the prediction with this speed; `fast_ttl_s` is its TTL if that is fast."""
    return Prediction(
        speed=speed,
        p50_s=distribution.quantile_s(0.5),
        p90_s=distribution.quantile_s(0.9),
        ttl_s={"fast": fast_ttl_s, "slow": 0.0, "uncertain": UNCERTAIN_TTL_S}[speed],
        source=source,
        explanation=explanation,
        distribution=distribution,
    )


IN_BACKGROUND = prediction(
    "fast",
    LogNormal(mean_ln=math.log(0.05), spread_ln=1.0),
    2 * ROUND_TRIP_S,
    "arguments",
    "The call sends its command to the background.",
)
A_PERSON = prediction(
    "slow",
    LogNormal(mean_ln=math.log(60.0), spread_ln=1.5),
    0.0,
    "arguments",
    "The call asks a person, who takes about a minute.",
)


def cut_at(distribution: Distribution, limit_s: float) -> Distribution:
    """Return the distribution of what is stopped after `limit_s`."""
    return AnyDistribution(
        lambda seconds: distribution.p_over(seconds) if seconds < limit_s else 0.0,
        lambda share: min(distribution.quantile_s(share), limit_s),
    )


def within(found: Prediction, limit_s: float) -> Prediction:
    """Return the prediction for a call that comes back after `limit_s` at the latest.

    A fast one's pin outlasts the limit by the trip to the client and back.
    """
    speed, ttl_s = found.speed, found.ttl_s
    if limit_s <= FAST_S:
        speed, ttl_s = "fast", found.ttl_s or math.inf
    elif limit_s <= SLOW_S and speed == "slow":
        speed, ttl_s = "uncertain", UNCERTAIN_TTL_S
    return replace(
        found,
        speed=speed,
        p50_s=min(found.p50_s, limit_s),
        p90_s=min(found.p90_s, limit_s),
        ttl_s=min(ttl_s, limit_s + ROUND_TRIP_S),
        explanation=f"{found.explanation} The call comes back after {limit_s:g} s at the latest.",
        distribution=cut_at(found.distribution, limit_s),
    )


def counted(count: int, noun: str) -> str:
    """Return `1 run`, `12 runs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def summary(distribution: Distribution) -> str:
    """Return the numbers that matter for a pin, as the end of a sentence."""
    p50_s = distribution.quantile_s(0.5)
    p50 = f"{p50_s:.0f}" if p50_s >= 10 else f"{p50_s:.2g}"
    return (
        f"half end within {p50} s, "
        f"{1 - distribution.p_over(FAST_S):.0%} within {FAST_S:g} s, "
        f"{distribution.p_over(SLOW_S):.0%} take over {SLOW_S:g} s."
    )
