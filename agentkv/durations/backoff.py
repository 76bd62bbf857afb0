"""The default predictor: a prior from the command's text, corrected by every run like it.

Each level of likeness, from the same program to the very same text, mixes in the runs it has seen,
recent ones counting more: with weight n they take n / (n + 2.5) of the mixture. Source:
hierarchical back-off as in smoothed n-gram models (absolute counts against a fixed prior weight),
on our own choice of levels.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

from agentkv.commands import CommandAnalysis
from agentkv.durations import grid
from agentkv.durations.grid import NUM_BINS, bell
from agentkv.durations.keys import LEVEL_NAMES, THIS_COMMAND, Keys, digested, keys_of
from agentkv.durations.prediction import (
    ROUND_TRIP_S,
    Prediction,
    Predictor,
    counted,
    prediction,
    summary,
    verdict,
)
from agentkv.durations.prior import PriorInput, prior_input
from agentkv.durations.trees import TreeEnsemble

PRIOR_WEIGHT = 2.5
"""Runs that the levels above count for, against those of a level."""
DECAY = 0.8
"""Each run of a level counts this much less than the next: an effective window of 5."""
RUN_DEVIATION = 0.25
"""A run of d seconds speaks for durations within a factor of e^0.25 around d."""
WAIT_DEVIATION = 0.2
"""The same for a command that mostly sleeps for a time given in its text."""
MAX_SHAPE = 1.0
"""The trees change the usual time by a factor of e at most, for any training data."""
MAX_GROUPS = 4096
"""Groups of runs remembered over all levels, 400 bytes each; the least recently seen is dropped."""
SURE_FAST = 0.75
SURE_SLOW = 0.65
"""Probabilities above which a command is called fast or slow. Lower than ContextServe's 0.85, since
these are calibrated."""
TTL_SHARE = 0.95
"""Share of its runs that a fast command's pin outlasts, and the trip to the client and back."""
MAX_FAST_TTL_S = 10.0

PRIOR_VARIANCE = 0.1
"""Variance of an unseen part's effect: one seldom makes a command e^0.6 = 1.9 times slower."""
NOISE_VARIANCE = 0.9
"""Variance of ln(seconds) between runs alike in all parts."""
DRIFT_VARIANCE = 0.002
"""Variance added at each run: projects and networks change, and old weights must give way."""
MAX_WEIGHTS = 8192
_MAX_SURPRISE = 2.0
"""Standard deviations at which a run's surprise is capped: one that hung must not teach much."""

_SMALLEST_SCALE = 1e-6
_MAX_READINGS = 256


class _Reading(NamedTuple):
    """What the estimator reads off a command's text, kept until it is restored or forgotten."""

    prior: PriorInput
    keys: Keys
    mean_ln: float
    """Mean of ln(seconds) before any observation."""
    ln_repeats: float
    """Added to ln(seconds) of one run of its main program. Groups of programs remember one run, so
    that a loop is predicted from a single run, and a single run from a loop."""


class BackoffEstimator(Predictor):
    """Predicts from a prior and four levels of runs; learns online from the first command."""

    def __init__(self, prior: TreeEnsemble) -> None:
        self._prior = prior
        self._effects = Effects()
        self._groups: OrderedDict[tuple[int, str], _Group] = OrderedDict()
        self._readings: OrderedDict[str, _Reading] = OrderedDict()

    def predict(self, command: CommandAnalysis) -> Prediction:
        reading = self._read(command)
        bins, seen = self._mixture(reading)
        distribution = grid.GridDistribution(bins)
        speed = verdict(distribution, SURE_FAST, SURE_SLOW)
        if not seen:
            # nothing unknown may make it fast, nor be what makes it slow
            prior = reading.prior
            if not (prior.is_known if speed == "fast" else prior.is_mostly_known):
                speed = "uncertain"
        return prediction(
            speed,
            distribution,
            fast_ttl_s=min(distribution.quantile_s(TTL_SHARE) + ROUND_TRIP_S, MAX_FAST_TTL_S),
            source="runs" if seen else "prior",
            explanation=_explanation(reading.prior, seen, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        reading = self._read(command)
        run: tuple[int, Sequence[float]]
        one_run: tuple[int, Sequence[float]]
        if censored:
            # the run has the shape of the prediction beyond the bound
            bins = grid.over(self._mixture(reading)[0], duration_s)
            run, one_run = (0, bins), (0, grid.shifted(bins, -reading.ln_repeats))
            ln_s = sum(share * centre for share, centre in zip(bins, grid.CENTRES, strict=True))
        else:
            ln_s = math.log(min(max(duration_s, grid.LOWEST_S), grid.HIGHEST_S))
            run = bell(ln_s, RUN_DEVIATION)
            one_run = bell(ln_s - reading.ln_repeats, RUN_DEVIATION)
        self._effects.observe(reading.keys.effects, ln_s - reading.mean_ln)
        for place in enumerate(reading.keys.levels):
            group = self._groups.pop(place, None) or _Group(array("d", bytes(8 * NUM_BINS)))
            group.add(*(run if place[0] == THIS_COMMAND else one_run))
            self._groups[place] = group
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def _read(self, command: CommandAnalysis) -> _Reading:
        reading = self._readings.get(command.text)
        if reading is None:
            prior = prior_input(command)
            keys, mean_ln = digested(keys_of(command, prior.main)), self._prior_mean(prior)
            reading = _Reading(prior, keys, mean_ln, math.log(prior.repeats))
            self._readings[command.text] = reading
            if len(self._readings) > _MAX_READINGS:
                self._readings.popitem(last=False)
        return reading

    def _prior_mean(self, prior: PriorInput) -> float:
        """Return the mean of ln(seconds): no less for the whole than for a part of it."""
        if prior.is_a_wait:
            return math.log(prior.typical_s)
        parts = ((prior.typical_s, prior.features), *prior.parts)
        return max(
            math.log(typical_s) + min(max(self._prior.raw_score(features), -MAX_SHAPE), MAX_SHAPE)
            for typical_s, features in parts
        )

    def _mixture(self, reading: _Reading) -> tuple[list[float], list[tuple[int, int]]]:
        """Return the bins, and (level, number of runs) of each level that has seen any."""
        prior, keys, mean_ln, ln_repeats = reading
        effect, variance = self._effects.mean_and_variance(keys.effects)
        deviation = math.sqrt(NOISE_VARIANCE + min(variance, 1.0))
        if prior.is_a_wait:
            effect, deviation = 0.0, WAIT_DEVIATION
        bins = grid.dense(*bell(mean_ln + effect, deviation))
        seen = []
        for place in enumerate(keys.levels):
            group = self._groups.get(place)
            if group is not None:
                runs: Sequence[float] = group.bins
                if ln_repeats and place[0] != THIS_COMMAND:
                    runs = grid.shifted(runs, ln_repeats)
                share = 1.0 / (group.weight + PRIOR_WEIGHT)
                kept, share = PRIOR_WEIGHT * share, group.scale * share
                bins = [share * own + kept * above for own, above in zip(runs, bins, strict=True)]
                seen.append((place[0], group.num_runs))
        if prior.timeout_s is not None:
            bins = grid.cut_at(bins, prior.timeout_s)
        return bins, seen

    def state(self) -> dict[str, Any]:
        return {
            "effects": self._effects.state(),
            "groups": [
                [level, key, round(group.weight, 4), group.num_runs, group.sparse()]
                for (level, key), group in self._groups.items()
            ],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._effects.restore(state["effects"])
        self._groups.clear()
        for level, key, weight, num_runs, sparse in state["groups"][-MAX_GROUPS:]:
            if not (isinstance(key, str) and 0 <= weight <= 1 / (1 - DECAY) + 1e-3):
                raise ValueError(f"not a group of runs: {key!r:.80}, weight {weight!r:.20}")
            bins = array("d", bytes(8 * NUM_BINS))
            for index, value in sparse:
                bins[index] = min(max(float(value), 0.0), weight)
            self._groups[(int(level), key)] = _Group(bins, float(weight), int(num_runs))


class _Group:
    """The runs of one level: their summed bell curves, their weight and their number.

    The true sums are `bins * scale`, so that the decay of all bins is one multiplication.
    """

    __slots__ = ("bins", "num_runs", "scale", "weight")

    def __init__(self, bins: array[float], weight: float = 0.0, num_runs: int = 0) -> None:
        self.bins = bins
        self.scale = 1.0
        self.weight = weight
        self.num_runs = num_runs

    def add(self, first: int, parts: Sequence[float]) -> None:
        self.scale *= DECAY
        if self.scale < _SMALLEST_SCALE:
            self.bins = array("d", [share * self.scale for share in self.bins])
            self.scale = 1.0
        bins, unit = self.bins, 1.0 / self.scale
        for index, share in enumerate(parts, first):
            bins[index] += share * unit
        self.weight = DECAY * self.weight + 1.0
        self.num_runs += 1

    def sparse(self) -> list[list[Any]]:
        """Return [index, sum] of the bins that hold anything."""
        sums = [share * self.scale for share in self.bins]
        return [[index, round(share, 5)] for index, share in enumerate(sums) if share > 1e-5]


class Effects:
    """What each part of a command adds to ln(seconds): a linear model that learns from every run.

    One weight per part (a program, an option, a target), each with a mean and a variance; a run
    moves the uncertain ones most. Keeps the MAX_WEIGHTS parts seen last. Source: assumed-density
    filtering, the Kalman update of a linear model with the covariance kept diagonal.
    """

    def __init__(self) -> None:
        self._weights: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def mean_and_variance(self, parts: Sequence[str]) -> tuple[float, float]:
        """Return what these parts together add to ln(seconds), and the variance of that."""
        mean = variance = 0.0
        for part in parts:
            weight = self._weights.get(part)
            if weight is None:
                variance += PRIOR_VARIANCE
            else:
                mean += weight[0]
                variance += weight[1]
        return mean, variance

    def observe(self, parts: Sequence[str], added: float) -> None:
        """Learn that these parts together added `added` to ln(seconds)."""
        mean, variance = self.mean_and_variance(parts)
        total = variance + NOISE_VARIANCE
        bound = _MAX_SURPRISE * math.sqrt(total)
        step = min(max(added - mean, -bound), bound) / total
        for part in parts:
            weight, own = self._weights.pop(part, (0.0, PRIOR_VARIANCE))
            kept = own * (1.0 - own / total) + DRIFT_VARIANCE
            self._weights[part] = (weight + own * step, min(kept, PRIOR_VARIANCE))
        while len(self._weights) > MAX_WEIGHTS:
            self._weights.popitem(last=False)

    def state(self) -> list[list[Any]]:
        return [[part, round(w, 4), round(v, 5)] for part, (w, v) in self._weights.items()]

    def restore(self, state: list[list[Any]]) -> None:
        """Take back what `state` returned. Raises TypeError or ValueError for other data."""
        self._weights.clear()
        for part, weight, variance in state[-MAX_WEIGHTS:]:
            if not (isinstance(part, str) and abs(weight) < 50 and 0 <= variance <= 10):
                raise ValueError(f"not a weight: {part!r:.80}, {weight!r:.20}, {variance!r:.20}")
            self._weights[part] = (float(weight), float(variance))


def _explanation(
    prior: PriorInput, seen: list[tuple[int, int]], distribution: grid.GridDistribution
) -> str:
    name = "nothing that lasts" if prior.main is None else f"`{prior.main.key}`"
    usual = f"{name}: usually about {prior.typical_s:.2g} s"
    if not prior.is_mostly_known:
        usual = f"{name}: not known beforehand how long it takes"
    elif not prior.is_known:
        usual += ", but not all of it is known beforehand"
    runs = ", ".join(f"{counted(count, 'run')} of {LEVEL_NAMES[level]}" for level, count in seen)
    return f"{usual}; {runs or 'no run like it seen yet'}: {summary(distribution)}"
