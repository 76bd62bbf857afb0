"""The default predictor: what was known beforehand, corrected by every run like it.

A prior over a grid of durations comes from what programs usually take, the command's shape (trees
trained offline) and the effects of its parts in this place. Each level of likeness, from the same
program to the very same text, then mixes in the runs it has seen, recent ones counting more: with
weight n they take n / (n + 2.5) of the mixture. Source: hierarchical back-off as in smoothed
n-gram models (absolute counts against a fixed prior weight), on our own choice of levels.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from typing import Any

from agentkv.commands import CommandAnalysis
from agentkv.durations.effects import NOISE_VARIANCE, Effects
from agentkv.durations.grid import (
    CENTRES,
    HIGHEST_S,
    LOWEST_S,
    NUM_BINS,
    GridDistribution,
    bell,
    cut_at,
    over,
)
from agentkv.durations.keys import LEVEL_NAMES, Keys, keys_of
from agentkv.durations.prediction import FAST_S, SLOW_S, Prediction, Speed
from agentkv.durations.prior_features import PriorInput, prior_input
from agentkv.durations.trees import TreeEnsemble
from agentkv.durations.verdicts import counted, prediction, summary

PRIOR_WEIGHT = 2.5
"""Runs that the levels above count for, against those of a level."""
DECAY = 0.8
"""Each run of a level counts this much less than the next: an effective window of 5."""
RUN_DEVIATION = 0.25
"""A run of d seconds speaks for durations within a factor of e^0.25 around d."""
WAIT_DEVIATION = 0.2
"""The same for a command that mostly sleeps a time that its text says."""
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


class _Group:
    """The runs of one level: summed bell curves, how many they weigh, how many there were."""

    __slots__ = ("bins", "num_runs", "weight")

    def __init__(self, bins: array[float], weight: float, num_runs: int) -> None:
        self.bins = bins
        self.weight = weight
        self.num_runs = num_runs

    def add(self, run: list[float]) -> None:
        self.bins = array("d", [DECAY * old + new for old, new in zip(self.bins, run, strict=True)])
        self.weight = DECAY * self.weight + 1.0
        self.num_runs += 1


class BackoffEstimator:
    """Predicts from a prior and four levels of runs; learns online from the first command."""

    def __init__(self, prior: TreeEnsemble) -> None:
        self._prior = prior
        self._effects = Effects()
        self._groups: OrderedDict[tuple[int, str], _Group] = OrderedDict()

    def predict(self, command: CommandAnalysis) -> Prediction:
        given = prior_input(command)
        keys = keys_of(command, given.main)
        bins, reasons = self._mixture(given, keys)
        distribution = GridDistribution(bins)
        speed = _speed(distribution)
        ttl_s = min(distribution.quantile_s(TTL_SHARE) + ROUND_TRIP_S, MAX_FAST_TTL_S)
        return prediction(
            speed,
            distribution,
            fast_ttl_s=ttl_s,
            source="runs" if reasons else "prior",
            explanation=_explanation(given, reasons, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        given = prior_input(command)
        keys = keys_of(command, given.main)
        if censored:
            # What is known is the shape of the prediction beyond the bound.
            run = over(self._mixture(given, keys)[0], duration_s)
            ln_s = sum(share * centre for share, centre in zip(run, CENTRES, strict=True))
        else:
            ln_s = math.log(min(max(duration_s, LOWEST_S), HIGHEST_S))
            run = bell(ln_s, RUN_DEVIATION)
        self._effects.observe(keys.effects, ln_s - self._prior_mean(given))
        for place in enumerate(keys.levels):
            group = self._groups.pop(place, None) or _Group(array("d", bytes(8 * NUM_BINS)), 0.0, 0)
            group.add(run)
            self._groups[place] = group
        while len(self._groups) > MAX_GROUPS:
            self._groups.popitem(last=False)

    def _mixture(self, given: PriorInput, keys: Keys) -> tuple[list[float], list[tuple[int, int]]]:
        """The bins, and (level, number of runs) of each level that has seen any."""
        effect, variance = self._effects.mean_and_variance(keys.effects)
        deviation = math.sqrt(NOISE_VARIANCE + min(variance, 1.0))
        if given.wait_s > given.typical_s / 2:
            deviation = WAIT_DEVIATION
        bins = bell(self._prior_mean(given) + effect, deviation)
        seen = []
        for place in enumerate(keys.levels):
            group = self._groups.get(place)
            if group is not None:
                share = 1.0 / (group.weight + PRIOR_WEIGHT)
                kept = PRIOR_WEIGHT * share
                bins = [
                    share * own + kept * above for own, above in zip(group.bins, bins, strict=True)
                ]
                seen.append((place[0], group.num_runs))
        if given.timeout_s is not None:
            bins = cut_at(bins, given.timeout_s)
        return bins, seen

    def _prior_mean(self, given: PriorInput) -> float:
        return math.log(given.typical_s) + self._prior.raw_score(given.features)

    def state(self) -> dict[str, Any]:
        return {
            "effects": self._effects.state(),
            "groups": [
                [level, key, round(group.weight, 4), group.num_runs, _sparse(group.bins)]
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


def _speed(distribution: GridDistribution) -> Speed:
    if 1.0 - distribution.p_over(FAST_S) >= SURE_FAST:
        return "fast"
    return "slow" if distribution.p_over(SLOW_S) >= SURE_SLOW else "uncertain"


def _explanation(
    given: PriorInput, seen: list[tuple[int, int]], distribution: GridDistribution
) -> str:
    name = "nothing that lasts" if given.main is None else f"`{given.main.key}`"
    usual = f"{name}: usually about {given.typical_s:.2g} s"
    runs = ", ".join(f"{counted(count, 'run')} of {LEVEL_NAMES[level]}" for level, count in seen)
    return f"{usual}; {runs or 'no run like it seen yet'}: {summary(distribution)}"


def _sparse(bins: array[float]) -> list[list[Any]]:
    return [[index, round(value, 5)] for index, value in enumerate(bins) if value > 1e-5]
