"""The Normal-Inverse-Gamma posterior over ln(seconds) of a window of durations.

Source: ContextServe for the prior; Murphy, "Conjugate Bayesian analysis of the Gaussian
distribution" (2007), section 6, for the update and the predictive distribution.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from agentkv.durations.student_t import t_quantile, t_survival
from agentkv.durations.windows import WINDOW

PRIOR_MEAN = 0.0
PRIOR_WEIGHT = 1.0
PRIOR_SHAPE = 1.0
PRIOR_SCALE = 1.0

_MAX_LN = 20.0
"""15 years: keeps the quantiles of a posterior with two degrees of freedom in range."""
_FAR_TAIL = 25.0
_MAX_SAVED = 1e4
_RESOLUTION = 2.0**16
"""Parts of a unit of ln(seconds) that are told apart: few enough for the sums over a window to be
exact, so that they do not drift and a restored window gives the very same numbers."""


@dataclass(frozen=True, slots=True)
class LogStudentT:
    """ln(seconds) is Student-t with this location, scale and number of degrees of freedom."""

    mean_ln: float
    scale_ln: float
    num_degrees: float

    def p_over(self, seconds: float) -> float:
        """Probability, 0 to 1, that the command runs longer than `seconds`."""
        if seconds <= 0:
            return 1.0
        return t_survival((math.log(seconds) - self.mean_ln) / self.scale_ln, self.num_degrees)

    def quantile_s(self, share: float) -> float:
        """The seconds within which this share (0 to 1, exclusive) of the runs end."""
        distance_ln = self.scale_ln * t_quantile(share, self.num_degrees)
        return math.exp(min(self.mean_ln + distance_ln, _MAX_LN))


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and weight of the mean of ln(seconds), shape and scale of its variance."""

    mean: float
    weight: float
    shape: float
    scale: float

    def predictive(self) -> LogStudentT:
        """The distribution of the next run."""
        variance = self.scale * (self.weight + 1.0) / (self.shape * self.weight)
        return LogStudentT(self.mean, math.sqrt(variance), 2.0 * self.shape)

    def beyond(self, bound_ln: float) -> tuple[float, float]:
        """Mean and variance of ln(seconds) given that it exceeds the bound.

        Of a normal with the expected mean and variance, the E-step of expectation maximisation.
        The predictive's heavier tail would be wrong here: where all runs are cut off it takes the
        estimate to years (in a simulation with half the runs cut off, 200 of them estimate a true
        mean ln of 4.0 as 4.7; the normal gives 4.1, taking the bounds as durations 3.6).
        """
        spread = math.sqrt(self.scale / self.shape)
        distance = (bound_ln - self.mean) / spread
        excess = _normal_mean_beyond(distance)
        variance = max(1.0 + distance * excess - excess * excess, 0.0)
        return self.mean + spread * excess, spread * spread * variance

    def sampled_quantile_s(self, share: float, chance: random.Random) -> float:
        """The quantile in seconds under one mean and variance drawn from the posterior."""
        variance = self.scale / chance.gammavariate(self.shape, 1.0)
        mean = chance.gauss(self.mean, math.sqrt(variance / self.weight))
        return math.exp(min(mean + math.sqrt(variance) * NormalDist().inv_cdf(share), _MAX_LN))


class LogWindow:
    """The latest durations of one key as mean and variance of ln(seconds).

    The variance of a measured duration is 0. Of one that is only known to exceed a bound both are
    the expectation beyond it: a step of incremental expectation maximisation (Neal and Hinton,
    1998), in which each observation is imputed once, when it arrives.
    """

    __slots__ = ("_entries", "_sum", "_sum_of_squares")

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()
        self._sum = 0.0
        self._sum_of_squares = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, mean: float, variance: float) -> None:
        """Add one duration; the oldest goes when the window is full."""
        mean = round(mean * _RESOLUTION) / _RESOLUTION
        variance = round(variance * _RESOLUTION) / _RESOLUTION
        if len(self._entries) == WINDOW:
            old_mean, old_variance = self._entries.popleft()
            self._sum -= old_mean
            self._sum_of_squares -= old_mean * old_mean + old_variance
        self._entries.append((mean, variance))
        self._sum += mean
        self._sum_of_squares += mean * mean + variance

    def posterior(self) -> Posterior:
        """What the window says of the key; of an empty window the prior."""
        count = len(self._entries)
        weight = PRIOR_WEIGHT + count
        mean = (PRIOR_WEIGHT * PRIOR_MEAN + self._sum) / weight
        spread = PRIOR_WEIGHT * PRIOR_MEAN**2 + self._sum_of_squares - weight * mean * mean
        scale = PRIOR_SCALE + max(spread, 0.0) / 2.0  # not below 0 but for rounding
        return Posterior(mean, weight, PRIOR_SHAPE + count / 2.0, scale)

    def state(self) -> list[list[float]]:
        return [list(entry) for entry in self._entries]

    def restore(self, state: Any) -> None:
        """Raises TypeError or ValueError where the data does not fit."""
        for mean, variance in state[-WINDOW:]:
            if not (abs(mean) <= _MAX_SAVED and 0 <= variance <= _MAX_SAVED):
                raise ValueError(f"not a mean and a variance: {mean!r}, {variance!r}")
            self.add(float(mean), float(variance))


def _normal_mean_beyond(distance: float) -> float:
    """E[x | x > distance] of a standard normal x."""
    if distance > _FAR_TAIL:  # the first two terms of the asymptotic series
        return distance + 1.0 / distance
    density = math.exp(-distance * distance / 2) / math.sqrt(2 * math.pi)
    return density / (0.5 * math.erfc(distance / math.sqrt(2)))
