"""ContextServe's second layer: a Bayesian posterior over the durations of one context or tool.

Source for the levels, the thresholds and the three TTL rules: ContextServe.
"""

from __future__ import annotations

import math
import random
from typing import Any, Literal

from agentkv.commands import CommandAnalysis
from agentkv.durations.levels import Level, Levels
from agentkv.durations.posterior import LogStudentT, LogWindow
from agentkv.durations.prediction import Prediction
from agentkv.durations.verdicts import TTL_SHARE, prediction, summary, verdict

TTLRule = Literal["quantile", "thompson", "upper"]
UPPER_SHARE = 0.95

_MIN_DURATION_S = 1e-3


class BayesEstimator:
    """The posterior of the most specific level with enough observations.

    `ttl_rule` gives the TTL of a fast command: "quantile", the 0.9 quantile of the next run;
    "thompson", that quantile under a mean and variance drawn from the posterior (the draw depends
    on `seed` and on what was observed, not on how often one asks); "upper", the 0.95 quantile.
    """

    def __init__(self, *, seed: int = 0, ttl_rule: TTLRule = "quantile") -> None:
        self._levels = Levels(LogWindow)
        self._num_observed = 0
        self._seed = seed
        self._ttl_rule = ttl_rule

    def predict(self, command: CommandAnalysis) -> Prediction:
        return self.predict_from(self._levels.best(command))

    def best_level(self, command: CommandAnalysis) -> Level[LogWindow]:
        """The level that a prediction for this command rests on."""
        return self._levels.best(command)

    def predict_from(self, level: Level[LogWindow]) -> Prediction:
        """The prediction of one level; uncertain while that is cold."""
        distribution = level.window.posterior().predictive()
        speed = verdict(distribution) if level.is_warm else "uncertain"
        return prediction(
            speed,
            distribution,
            fast_ttl_s=self._ttl_s(level, distribution) if speed == "fast" else 0.0,
            source="bayes",
            explanation=_explanation(level, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        """A censored duration is imputed under what was known of the command before it."""
        mean, variance = math.log(max(duration_s, _MIN_DURATION_S)), 0.0
        if censored:
            mean, variance = self._levels.best(command).window.posterior().beyond(mean)
        for window in self._levels.to_observe(command):
            window.add(mean, variance)
        self._num_observed += 1

    def state(self) -> dict[str, Any]:
        return {"num_observed": self._num_observed, **self._levels.state()}

    def restore(self, state: dict[str, Any]) -> None:
        if not isinstance(state["num_observed"], int):
            raise TypeError(f"not a number of observations: {state['num_observed']!r:.100}")
        self._levels.restore(state)
        self._num_observed = state["num_observed"]

    def _ttl_s(self, level: Level[LogWindow], distribution: LogStudentT) -> float:
        if self._ttl_rule == "thompson":
            chance = random.Random(f"{self._seed}/{self._num_observed}/{level.key}")
            return level.window.posterior().sampled_quantile_s(TTL_SHARE, chance)
        return distribution.quantile_s(UPPER_SHARE if self._ttl_rule == "upper" else TTL_SHARE)


def _explanation(level: Level[LogWindow], distribution: LogStudentT) -> str:
    if not level.is_warm:
        return level.why_cold()
    return f"Posterior after {len(level.window)} runs of {level}: {summary(distribution)}"
