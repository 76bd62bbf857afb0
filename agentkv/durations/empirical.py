"""A baseline between first words and posteriors: the empirical distribution of the best level."""

from __future__ import annotations

from typing import Any

from agentkv.commands import CommandAnalysis
from agentkv.durations.curves import DurationCurve
from agentkv.durations.levels import Levels
from agentkv.durations.log_normal import ANY_COMMAND
from agentkv.durations.prediction import Prediction
from agentkv.durations.verdicts import TTL_SHARE, prediction, verdict


class EmpiricalEstimator:
    """The latest durations of the most specific level with enough of them, taken as they are."""

    def __init__(self) -> None:
        self._levels = Levels(DurationCurve)

    def predict(self, command: CommandAnalysis) -> Prediction:
        level = self._levels.best(command)
        if not level.is_warm:
            return prediction(
                "uncertain",
                ANY_COMMAND,
                fast_ttl_s=0.0,
                source="empirical",
                explanation=level.why_cold(),
            )
        distribution = level.window.distribution()
        return prediction(
            verdict(distribution),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="empirical",
            explanation=level.window.explanation(str(level)),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        for window in self._levels.to_observe(command):
            window.add(duration_s, censored=censored)

    def state(self) -> dict[str, Any]:
        return self._levels.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._levels.restore(state)
