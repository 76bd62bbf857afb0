"""How far scores would move with other sessions: bootstrap intervals.

Whole sessions are drawn, since the commands of one resemble each other; a trace of a single
session is drawn by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .predictor_replay import THRESHOLDS_S, Forecast
from .predictor_scores import Floats, Labels, auc, log_errors, scored_at

Indices = NDArray[np.int64]
Interval = tuple[float, float] | None

LOW_PERCENTILE, HIGH_PERCENTILE = 2.5, 97.5


def intervals(
    forecasts: Sequence[Forecast], *, num_resamples: int, seed: int
) -> dict[str, Interval]:
    """95% intervals of `auc_1` .. `auc_10` and `median_abs_log_error`; None where undefined."""
    found: dict[str, Interval] = {}
    for threshold_s in THRESHOLDS_S:
        known = [f for f in forecasts if f.row.is_over(threshold_s) is not None]
        scores, labels = scored_at(known, threshold_s)

        found[f"auc_{threshold_s:g}"] = _interval(
            known, partial(_auc_of, scores, labels), num_resamples, seed
        )
    measured = [forecast for forecast in forecasts if forecast.row.bound == "exact"]
    errors = log_errors(measured)
    found["median_abs_log_error"] = _interval(
        measured, lambda drawn: float(np.median(errors[drawn])), num_resamples, seed
    )
    return found


def _auc_of(scores: Floats, labels: Labels, drawn: Indices) -> float | None:
    return auc(scores[drawn], labels[drawn])


def _interval(
    forecasts: Sequence[Forecast],
    score: Callable[[Indices], float | None],
    num_resamples: int,
    seed: int,
) -> Interval:
    groups = _row_groups(forecasts)
    if not groups or not num_resamples:
        return None
    chance = np.random.default_rng(seed)
    values = []
    for _ in range(num_resamples):
        picks = chance.integers(len(groups), size=len(groups))
        value = score(np.concatenate([groups[pick] for pick in picks]))
        if value is not None:
            values.append(value)
    if not values:
        return None
    low, high = np.percentile(values, [LOW_PERCENTILE, HIGH_PERCENTILE])
    return float(low), float(high)


def _row_groups(forecasts: Sequence[Forecast]) -> list[Indices]:
    by_session: dict[tuple[str, str], list[int]] = {}
    for index, forecast in enumerate(forecasts):
        by_session.setdefault((forecast.row.trace, forecast.row.session), []).append(index)
    if len(by_session) > 1:
        return [np.array(rows) for rows in by_session.values()]
    return [np.array([index]) for index in range(len(forecasts))]
