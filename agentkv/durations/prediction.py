"""Prediction: a distribution of a command's duration, and what it means for a pin.

The policies read `speed`, `ttl_s` and `p_over`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, Protocol

Speed = Literal["fast", "slow", "uncertain"]

FAST_S, SLOW_S, SURE = 1.0, 5.0, 0.85
"""A command is called fast if it ends within these seconds, slow if it runs for longer, each with
more than this probability. Source: ContextServe."""
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
class LogNormal:
    """ln(seconds) is normal, with the median exp(mean_ln), and all is stopped after `limit_s`."""

    mean_ln: float
    spread_ln: float
    limit_s: float = math.inf

    def p_over(self, seconds: float) -> float:
        if seconds <= 0 or seconds >= self.limit_s:
            return float(seconds <= 0)
        distance = (math.log(seconds) - self.mean_ln) / self.spread_ln
        return 0.5 * math.erfc(distance / math.sqrt(2))

    def quantile_s(self, share: float) -> float:
        seconds = math.exp(self.mean_ln + self.spread_ln * NormalDist().inv_cdf(share))
        return min(seconds, self.limit_s)

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


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a command will run.

    `speed` decides about a pin: "fast" is pinned for `ttl_s` seconds, "slow" frees at once (`ttl_s`
    is 0), "uncertain" leaves it to another rule. `source` names the layer that decided,
    `explanation` says why in a sentence.
    """

    speed: Speed
    ttl_s: float
    source: str
    explanation: str
    distribution: Distribution

    @property
    def p50_s(self) -> float:
        return self.distribution.quantile_s(0.5)

    @property
    def p90_s(self) -> float:
        return self.distribution.quantile_s(0.9)

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
    ttl_s = {"fast": fast_ttl_s, "slow": 0.0, "uncertain": UNCERTAIN_TTL_S}[speed]
    return Prediction(speed, ttl_s, source, explanation, distribution)


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


def within(found: Prediction, limit_s: float) -> Prediction:
    """Return the prediction for a call that comes back after `limit_s` at the latest.

    A fast one's pin outlasts the limit by the trip to the client and back.
    """
    assert isinstance(found.distribution, LogNormal)
    limit_s = min(limit_s, found.distribution.limit_s)
    speed, ttl_s = found.speed, found.ttl_s
    if limit_s <= FAST_S:
        speed, ttl_s = "fast", found.ttl_s or math.inf
    elif limit_s <= SLOW_S and speed == "slow":
        speed, ttl_s = "uncertain", UNCERTAIN_TTL_S
    return replace(
        found,
        speed=speed,
        ttl_s=min(ttl_s, limit_s + ROUND_TRIP_S),
        explanation=f"{found.explanation} The call comes back after {limit_s:g} s at the latest.",
        distribution=replace(found.distribution, limit_s=limit_s),
    )


def summary(distribution: Distribution) -> str:
    """Return the numbers that matter for a pin, as the end of a sentence."""
    p50_s = distribution.quantile_s(0.5)
    p50 = f"{p50_s:.0f}" if p50_s >= 10 else f"{p50_s:.2g}"
    return (
        f"half end within {p50} s, "
        f"{1 - distribution.p_over(FAST_S):.0%} within {FAST_S:g} s, "
        f"{distribution.p_over(SLOW_S):.0%} take over {SLOW_S:g} s."
    )
