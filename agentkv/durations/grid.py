"""Distributions of durations as probabilities over a fixed grid of bins, even in ln(seconds).

The default predictor mixes, shifts and cuts them. Knows nothing of commands.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

NUM_EDGES = 41
LOWEST_S, HIGHEST_S = 0.01, 2000.0
NUM_BINS = NUM_EDGES + 1
"""One below the lowest edge, one above the highest, the rest between neighbours."""
_LOW = math.log(LOWEST_S)
_WIDTH = (math.log(HIGHEST_S) - _LOW) / (NUM_EDGES - 1)
EDGES = tuple(_LOW + index * _WIDTH for index in range(NUM_EDGES))
"""Bounds of the bins in ln(seconds)."""
CENTRES = tuple(_LOW + (index - 0.5) * _WIDTH for index in range(NUM_BINS))
"""Middles of the bins in ln(seconds)."""
_SQRT2 = math.sqrt(2.0)
_STEP = 0.05
_REACH = 3.5


def bell(mean: float, deviation: float) -> tuple[int, Sequence[float]]:
    """Return a normal distribution of ln(seconds): its first bin, and the bins from there on.

    The probabilities sum to 1; beyond 3.5 standard deviations it counts as flat. Both arguments
    are rounded to the next 0.05.
    """
    return _bell(round(mean / _STEP), max(1, round(deviation / _STEP)))


@lru_cache(maxsize=2048)
def _bell(mean_steps: int, deviation_steps: int) -> tuple[int, Sequence[float]]:
    mean, deviation = mean_steps * _STEP, deviation_steps * _STEP
    first = min(max(0, math.ceil((mean - _REACH * deviation - _LOW) / _WIDTH)), NUM_BINS - 1)
    last = min(NUM_EDGES, math.floor((mean + _REACH * deviation - _LOW) / _WIDTH) + 1)
    scale = 1.0 / (deviation * _SQRT2)
    below = [0.5 + 0.5 * math.erf((EDGES[i] - mean) * scale) for i in range(first, last)]
    bounds = zip((0.0, *below), (*below, 1.0), strict=True)
    return first, tuple([high - low for low, high in bounds])


def dense(first: int, parts: Sequence[float]) -> list[float]:
    """Return all bins, those outside `parts` as 0."""
    return [0.0] * first + [*parts] + [0.0] * (NUM_BINS - first - len(parts))


class GridDistribution:
    """A distribution given by its bins' probabilities; ln(seconds) is even within a bin."""

    __slots__ = ("_at_most", "bins")

    def __init__(self, bins: Sequence[float]) -> None:
        self.bins = bins
        self._at_most = tuple(accumulate(bins))[:-1]

    def p_over(self, seconds: float) -> float:
        """Return the probability that it runs longer; 1 for 0 seconds or less."""
        if seconds <= 0.0:
            return 1.0
        place = (math.log(seconds) - _LOW) / _WIDTH
        if place <= 0.0:
            return 1.0 - self._at_most[0] * math.exp(place * _WIDTH)
        if place >= NUM_EDGES - 1:
            return (1.0 - self._at_most[-1]) * HIGHEST_S / seconds
        index = int(place)
        share = place - index
        low, high = self._at_most[index], self._at_most[index + 1]
        return min(1.0, max(0.0, 1.0 - low - share * (high - low)))

    def quantile_s(self, share: float) -> float:
        """Return seconds within which this share of the runs end, between the grid's bounds."""
        index = bisect_left(self._at_most, share)
        if index == 0:
            return LOWEST_S
        if index == NUM_EDGES:
            return HIGHEST_S
        low, high = self._at_most[index - 1], self._at_most[index]
        return math.exp(EDGES[index - 1] + _WIDTH * (share - low) / (high - low))


def shifted(bins: Sequence[float], by: float) -> list[float]:
    """Return the bins of durations e^`by` times as long; the outer bins keep what leaves the grid.

    Between two bins the probability is split, which keeps the mean of ln(seconds).
    """
    place = by / _WIDTH
    whole = math.floor(place)
    part = place - whole
    moved = [0.0] * NUM_BINS
    for index, share in enumerate(bins, whole):
        if share:
            low, high = min(max(index, 0), NUM_BINS - 1), min(max(index + 1, 0), NUM_BINS - 1)
            moved[low] += share * (1.0 - part)
            moved[high] += share * part
    return moved


def over(bins: Sequence[float], seconds: float) -> list[float]:
    """Return the bins given that it runs longer than `seconds`; if impossible, just above."""
    first = bin_of(seconds)
    # of the bin that holds the bound, the part above it
    part = min(1.0, max(0.0, CENTRES[first] + _WIDTH / 2 - math.log(max(seconds, 1e-9))) / _WIDTH)
    kept = [0.0] * first + [bins[first] * part, *bins[first + 1 :]]
    total = sum(kept)
    if total <= 1e-9:
        return dense(min(first + 1, NUM_BINS - 1), [1.0])
    return [share / total for share in kept]


def cut_at(bins: Sequence[float], seconds: float) -> list[float]:
    """Return the bins of runs that are stopped after `seconds`."""
    limit = bin_of(seconds)
    return [*bins[:limit], sum(bins[limit:]), *([0.0] * (NUM_BINS - limit - 1))]


def bin_of(seconds: float) -> int:
    """Return the index of the bin that holds a duration."""
    place = math.ceil((math.log(max(seconds, 1e-9)) - _LOW) / _WIDTH)
    return min(max(place, 0), NUM_BINS - 1)
