"""Replays a fold through one predictor and writes down what it forecast.

The predictor sees a row only as the fold allows: rows to learn from, then, in the online mode,
each judged row after its forecast. Scores are `predictor_scores`' business.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from agentkv.commands import analyze_command
from agentkv.durations import Prediction
from agentkv.durations.ttl import ContinuumTTL

from .predictor_splits import Fold, Mode
from .workload.traces import TracedCommand

UpperBounds = Literal["impute", "skip", "bound"]

THRESHOLDS_S = (1.0, 2.0, 5.0, 10.0)
EDGES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 300.0)
"""Where each forecast's distribution is read; they bound the bins of the log loss."""


class Predictor(Protocol):
    """What is judged: agentkv's DurationPredictor, or anything of that shape."""

    def predict(self, command: str) -> Prediction: ...
    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class LearningRules:
    """How rows are learned from, for every predictor alike.

    A row with an upper bound (at most 3 s) has no place in `observe`, whose `censored` is a lower
    bound. `impute`: observed as the median of the fold's measured durations under that bound;
    `bound`: observed as the bound; `skip`: not observed. `reload_s`: what a lost cache costs.
    """

    upper_bounds: UpperBounds = "bound"
    reload_s: float = 7.4


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one predictor said of one row before it was known, and what that took.

    `p_over` is at EDGES_S; `share_below` is the forecast's distribution function at the duration
    itself; `continuum_ttl_s` is the TTL that an uncertain command falls back to.
    """

    row: TracedCommand
    speed: str
    source: str
    p50_s: float
    ttl_s: float
    p_over: tuple[float, ...]
    share_below: float
    continuum_ttl_s: float
    predict_us: float
    observe_us: float | None = None

    @property
    def effective_ttl_s(self) -> float:
        """The TTL the policy takes: pin, free at once, or Continuum's."""
        if self.speed == "uncertain":
            return self.continuum_ttl_s
        return self.ttl_s if self.speed == "fast" else 0.0


class Learner:
    """A predictor and Continuum's TTL, which learn from the same rows."""

    def __init__(self, predictor: Predictor, rules: LearningRules, imputed_s: float) -> None:
        self._predictor = predictor
        self._rules = rules
        self._imputed_s = imputed_s
        self._continuum = ContinuumTTL()

    def observe(self, row: TracedCommand) -> float | None:
        """Learn one row; the predictor's time in microseconds, None if the rules pass it over."""
        if row.bound == "upper" and self._rules.upper_bounds == "skip":
            return None
        duration_s = row.duration_s
        if row.bound == "upper" and self._rules.upper_bounds == "impute":
            duration_s = min(duration_s, self._imputed_s)
        start_ns = time.perf_counter_ns()
        self._predictor.observe(row.command, duration_s, censored=row.bound == "lower")
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        self._continuum.durations.observe(first_program(row.command), duration_s)
        return took_us

    def forecast(self, row: TracedCommand) -> Forecast:
        """What is said of a row now; nothing is learned."""
        start_ns = time.perf_counter_ns()
        prediction = self._predictor.predict(row.command)
        took_us = (time.perf_counter_ns() - start_ns) / 1e3
        ttl = self._continuum.ttl(first_program(row.command), self._rules.reload_s)
        return Forecast(
            row,
            prediction.speed,
            prediction.source,
            prediction.p50_s,
            prediction.ttl_s,
            tuple(prediction.p_over(edge_s) for edge_s in EDGES_S),
            1.0 - prediction.p_over(row.duration_s),
            ttl.seconds,
            took_us,
        )


def replay(
    fold: Fold, predictor: Predictor, modes: Sequence[Mode], rules: LearningRules
) -> dict[Mode, list[Forecast]]:
    """Learn the fold's first part, then forecast its second in each mode.

    `frozen` comes first and learns nothing, so that `online` starts from the same state.
    """
    learner = Learner(predictor, rules, imputed_s=typical_short_s(fold.train))
    for row in fold.train:
        learner.observe(row)
    forecasts: dict[Mode, list[Forecast]] = {}
    if "frozen" in modes:
        forecasts["frozen"] = [learner.forecast(row) for row in fold.test]
    if "online" in modes:
        forecasts["online"] = [_forecast_then_observe(learner, row) for row in fold.test]
    return forecasts


def _forecast_then_observe(learner: Learner, row: TracedCommand) -> Forecast:
    forecast = learner.forecast(row)
    return replace(forecast, observe_us=learner.observe(row))


def typical_short_s(rows: Sequence[TracedCommand]) -> float:
    """The median measured duration no longer than the rows' upper bounds; 1 s without any."""
    bounds_s = [row.duration_s for row in rows if row.bound == "upper"]
    longest_s = max(bounds_s, default=3.0)
    measured_s = [r.duration_s for r in rows if r.bound == "exact" and r.duration_s <= longest_s]
    return statistics.median(measured_s) if measured_s else 1.0


def first_program(command: str) -> str | None:
    """The tool name that Continuum knows a command by; None if nothing runs."""
    programs = analyze_command(command).programs
    return programs[0].name if programs else None
