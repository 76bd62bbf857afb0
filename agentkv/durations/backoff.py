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
from agentkv.durations.grid import (
    CENTRES,
    HIGHEST_S,
    LOWEST_S,
    NUM_BINS,
    GridDistribution,
    bell,
    cut_at,
    dense,
    over,
    shifted,
)
from agentkv.durations.keys import LEVEL_NAMES, THIS_COMMAND, Keys, keys_of
from agentkv.durations.prediction import (
    FAST_S,
    SLOW_S,
    Prediction,
    Speed,
    counted,
    prediction,
    summary,
)
from agentkv.durations.prior import PriorInput, prior_input
from agentkv.durations.trees import TreeEnsemble

PRIOR_VARIANCE = 0.1
"""Of a weight never seen: one part alone seldom makes a command e^0.6 = 1.9 times slower."""
NOISE_VARIANCE = 0.9
"""Of ln(seconds) between runs alike in all parts."""
DRIFT_VARIANCE = 0.002
"""Added at each run: projects and networks change, and old weights must give way."""
MAX_WEIGHTS = 8192
_MAX_SURPRISE = 2.0
"""Standard deviations beyond which a run counts no more: one that hung should not teach much."""


class Effects:
    """At most MAX_WEIGHTS weights, those of the parts seen last."""

    def __init__(self) -> None:
        self._weights: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def mean_and_variance(self, parts: Sequence[str]) -> tuple[float, float]:
        """What these parts together add to ln(seconds), and how uncertain that is."""
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
        """Raises TypeError or ValueError where the data does not fit."""
        self._weights.clear()
        for part, weight, variance in state[-MAX_WEIGHTS:]:
            if not (isinstance(part, str) and abs(weight) < 50 and 0 <= variance <= 10):
                raise ValueError(f"not a weight: {part!r:.80}, {weight!r:.20}, {variance!r:.20}")
            self._weights[part] = (float(weight), float(variance))


PRIOR_WEIGHT = 2.5
"""Runs that the levels above count for, against those of a level."""
DECAY = 0.8
"""Each run of a level counts this much less than the next: an effective window of 5."""
RUN_DEVIATION = 0.25
"""A run of d seconds speaks for durations within a factor of e^0.25 around d."""
WAIT_DEVIATION = 0.2
"""The same for a command that mostly sleeps a time that its text says."""
MAX_SHAPE = 1.0
"""A command's shape changes the usual time by a factor of e at most, whatever it was trained on."""
MAX_GROUPS = 4096
"""Groups of runs remembered over all levels, 400 bytes each; the one not seen for longest goes."""
SURE_FAST = 0.75
SURE_SLOW = 0.65
"""Probabilities above which a command is called fast or slow. Lower than ContextServe's 0.85, since
these are calibrated: see docs/prediction.md for the regret measured at others."""
TTL_SHARE = 0.95
ROUND_TRIP_S = 1.0
"""A fast command's pin outlasts 95% of its runs and the trip to the client and back."""
MAX_FAST_TTL_S = 10.0

_SMALLEST_SCALE = 1e-6
_MAX_READINGS = 256


class _Group:
    """The runs of one level: their summed bell curves, how many they weigh, how many there were.

    The true sums are `bins * scale`: the decay of all bins is one multiplication.
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


class _Reading(NamedTuple):
    """What the estimator reads off a command, the same until the next training."""

    given: PriorInput
    keys: Keys
    prior_mean: float
    """Of ln(seconds), before anything was observed."""
    ln_repeats: float
    """Added to ln(seconds) of one run of its main program. What is remembered of programs is one
    run, so that a loop is foretold from a single run, and a single run from a loop."""


class BackoffEstimator:
    """Predicts from a prior and four levels of runs; learns online from the first command."""

    def __init__(self, prior: TreeEnsemble) -> None:
        self._prior = prior
        self._effects = Effects()
        self._groups: OrderedDict[tuple[int, str], _Group] = OrderedDict()
        self._readings: OrderedDict[str, _Reading] = OrderedDict()

    def predict(self, command: CommandAnalysis) -> Prediction:
        reading = self._read(command)
        bins, seen = self._mixture(reading)
        distribution = GridDistribution(bins)
        ttl_s = min(distribution.quantile_s(TTL_SHARE) + ROUND_TRIP_S, MAX_FAST_TTL_S)
        return prediction(
            _speed(distribution) if seen else _cold_speed(reading.given, distribution),
            distribution,
            fast_ttl_s=ttl_s,
            source="runs" if seen else "prior",
            explanation=_explanation(reading.given, seen, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        reading = self._read(command)
        parts: Sequence[float]
        one_run: tuple[int, Sequence[float]]
        if censored:
            # What is known is the shape of the prediction beyond the bound.
            first, parts = 0, over(self._mixture(reading)[0], duration_s)
            one_run = (0, shifted(parts, -reading.ln_repeats))
            ln_s = sum(share * centre for share, centre in zip(parts, CENTRES, strict=True))
        else:
            ln_s = math.log(min(max(duration_s, LOWEST_S), HIGHEST_S))
            first, parts = bell(ln_s, RUN_DEVIATION)
            one_run = bell(ln_s - reading.ln_repeats, RUN_DEVIATION)
        self._effects.observe(reading.keys.effects, ln_s - reading.prior_mean)
        for place in enumerate(reading.keys.levels):
            group = self._groups.pop(place, None) or _Group(array("d", bytes(8 * NUM_BINS)))
            group.add(*((first, parts) if place[0] == THIS_COMMAND else one_run))
            self._groups[place] = group
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def _read(self, command: CommandAnalysis) -> _Reading:
        reading = self._readings.get(command.text)
        if reading is None:
            given = prior_input(command)
            mean = self._prior_mean(given)
            reading = _Reading(given, keys_of(command, given.main), mean, math.log(given.repeats))
            self._readings[command.text] = reading
            if len(self._readings) > _MAX_READINGS:
                self._readings.popitem(last=False)
        return reading

    def _prior_mean(self, given: PriorInput) -> float:
        """Of ln(seconds): no less for the whole than for a part, whatever the trees say."""
        if _is_a_wait(given):
            return math.log(given.typical_s)
        readings = ((given.typical_s, given.features), *given.parts)
        return max(self._shaped(seconds, features) for seconds, features in readings)

    def _shaped(self, typical_s: float, features: Sequence[float]) -> float:
        shape = self._prior.raw_score(features)
        return math.log(typical_s) + min(max(shape, -MAX_SHAPE), MAX_SHAPE)

    def _mixture(self, reading: _Reading) -> tuple[list[float], list[tuple[int, int]]]:
        """The bins, and (level, number of runs) of each level that has seen any."""
        given, keys, mean, ln_repeats = reading
        effect, variance = self._effects.mean_and_variance(keys.effects)
        deviation = math.sqrt(NOISE_VARIANCE + min(variance, 1.0))
        if _is_a_wait(given):
            effect, deviation = 0.0, WAIT_DEVIATION
        bins = dense(*bell(mean + effect, deviation))
        seen = []
        for place in enumerate(keys.levels):
            group = self._groups.get(place)
            if group is not None:
                runs: Sequence[float] = group.bins
                if ln_repeats and place[0] != THIS_COMMAND:
                    runs = shifted(runs, ln_repeats)
                share = 1.0 / (group.weight + PRIOR_WEIGHT)
                kept, share = PRIOR_WEIGHT * share, group.scale * share
                bins = [share * own + kept * above for own, above in zip(runs, bins, strict=True)]
                seen.append((place[0], group.num_runs))
        if given.timeout_s is not None:
            bins = cut_at(bins, given.timeout_s)
        return bins, seen

    def state(self) -> dict[str, Any]:
        return {
            "effects": self._effects.state(),
            "groups": [
                [level, key, round(group.weight, 4), group.num_runs, _sparse(group)]
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


def _is_a_wait(given: PriorInput) -> bool:
    return given.wait_s > given.typical_s / 2


def _speed(distribution: GridDistribution) -> Speed:
    if 1.0 - distribution.p_over(FAST_S) >= SURE_FAST:
        return "fast"
    return "slow" if distribution.p_over(SLOW_S) >= SURE_SLOW else "uncertain"


def _cold_speed(given: PriorInput, distribution: GridDistribution) -> Speed:
    """Before any run: nothing unknown may make it fast, nor be what makes it slow."""
    speed = _speed(distribution)
    is_founded = given.is_known if speed == "fast" else given.is_mostly_known
    return speed if is_founded else "uncertain"


def _explanation(
    given: PriorInput, seen: list[tuple[int, int]], distribution: GridDistribution
) -> str:
    name = "nothing that lasts" if given.main is None else f"`{given.main.key}`"
    usual = f"{name}: usually about {given.typical_s:.2g} s"
    if not given.is_mostly_known:
        usual = f"{name}: not known beforehand how long it takes"
    elif not given.is_known:
        usual += ", but not all of it is known beforehand"
    runs = ", ".join(f"{counted(count, 'run')} of {LEVEL_NAMES[level]}" for level, count in seen)
    return f"{usual}; {runs or 'no run like it seen yet'}: {summary(distribution)}"


def _sparse(group: _Group) -> list[list[Any]]:
    shares = [share * group.scale for share in group.bins]
    return [[index, round(share, 5)] for index, share in enumerate(shares) if share > 1e-5]
