"""How good forecasts of durations are: ranking, error of the median, calibration, spread.

Plain arithmetic on forecasts. A row known only by a bound counts where the bound decides: a
command of at most 3 s is a negative for `> 5 s` and `> 10 s`, says nothing of `> 1 s`, and is left
out of the log error, the log loss and the PIT; a timed-out one is a positive below its bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .predictor_replay import EDGES_S, THRESHOLDS_S, Forecast

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]

SHORTEST_S = 0.01
"""Durations are raised to this before their logarithm is taken; clocks in traces tick in ms."""
UNIFORM_SHARE = 0.001
"""Mixed into each forecast before its log loss, so that a sure and wrong one costs 9, not oo."""
NUM_BINS = 10
CALIBRATION_S = 5.0


def auc(scores: Floats, labels: Labels) -> float | None:
    """P(a positive scores above a negative), ties half; None if one of the classes is missing."""
    num_positives = int(labels.sum())
    num_negatives = len(labels) - num_positives
    if not num_positives or not num_negatives:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    above = float(ranks[labels].sum()) - num_positives * (num_positives + 1) / 2
    return above / (num_positives * num_negatives)


def scored_at(
    forecasts: Sequence[Forecast], threshold_s: float, *, exact_only: bool = False
) -> tuple[Floats, Labels]:
    """P(longer) and whether it was, of the rows where that is known."""
    index = EDGES_S.index(threshold_s)
    pairs = [
        (forecast.p_over[index], is_over)
        for forecast in forecasts
        if (is_over := forecast.row.is_over(threshold_s)) is not None
        and (not exact_only or forecast.row.bound == "exact")
    ]
    scores = np.array([score for score, _ in pairs], dtype=np.float64)
    return scores, np.array([label for _, label in pairs], dtype=np.bool_)


def log_errors(forecasts: Sequence[Forecast]) -> Floats:
    """|ln p50 - ln duration| of every measured row."""
    measured = _measured(forecasts)
    p50_s = np.array([max(f.p50_s, SHORTEST_S) for f in measured], dtype=np.float64)
    took_s = np.array([max(f.row.duration_s, SHORTEST_S) for f in measured], dtype=np.float64)
    errors: Floats = np.abs(np.log(p50_s) - np.log(took_s))
    return errors


def median_abs_log_error(forecasts: Sequence[Forecast]) -> float | None:
    """The median of `log_errors`; None without a measured row."""
    errors = log_errors(forecasts)
    return float(np.median(errors)) if len(errors) else None


def log_loss(forecasts: Sequence[Forecast]) -> float | None:
    """Mean of -ln P(the bin the duration fell into), bins bounded by EDGES_S; None without rows.

    Edges belong to the bin below them. Forecasts are mixed with UNIFORM_SHARE of even bins.
    """
    measured = _measured(forecasts)
    if not measured:
        return None
    over = np.array([(1.0, *forecast.p_over, 0.0) for forecast in measured], dtype=np.float64)
    masses = np.clip(over[:, :-1] - over[:, 1:], 0.0, 1.0)
    durations_s = np.array([forecast.row.duration_s for forecast in measured])
    fell_into = np.searchsorted(np.array(EDGES_S), durations_s, side="left")
    mass = masses[np.arange(len(measured)), fell_into]
    mixed = (1.0 - UNIFORM_SHARE) * mass + UNIFORM_SHARE / masses.shape[1]
    return float(-np.log(mixed).mean())


def brier(scores: Floats, labels: Labels) -> float | None:
    """Mean squared distance of the probability from what happened; None without rows."""
    return float(np.mean((scores - labels) ** 2)) if len(labels) else None


def calibration(scores: Floats, labels: Labels) -> list[dict[str, Any]]:
    """Per tenth of predicted probability: rows, mean prediction, share that was longer."""
    bins = np.minimum((scores * NUM_BINS).astype(int), NUM_BINS - 1)
    table = []
    for index in range(NUM_BINS):
        inside = bins == index
        num = int(inside.sum())
        table.append(
            {
                "low": index / NUM_BINS,
                "high": (index + 1) / NUM_BINS,
                "n": num,
                "predicted": float(scores[inside].mean()) if num else None,
                "observed": float(labels[inside].mean()) if num else None,
            }
        )
    return table


def calibration_error(table: Sequence[dict[str, Any]]) -> float | None:
    """Mean distance of predicted from observed, weighted by rows; None without rows."""
    num = sum(line["n"] for line in table)
    if not num:
        return None
    filled = [line for line in table if line["n"]]
    gaps = sum(line["n"] * abs(line["predicted"] - line["observed"]) for line in filled)
    return float(gaps / num)


def pit_shares(forecasts: Sequence[Forecast]) -> list[float]:
    """Share of measured rows per tenth of the forecast's own distribution; even if calibrated."""
    places = np.array([forecast.share_below for forecast in _measured(forecasts)])
    counts, _ = np.histogram(np.clip(places, 0.0, 1.0), bins=NUM_BINS, range=(0.0, 1.0))
    return [float(count / max(1, len(places))) for count in counts]


def speed_confusion(forecasts: Sequence[Forecast]) -> dict[str, dict[str, int]]:
    """Rows by true speed, then by predicted: fast is 1 s or less, slow more than 5 s.

    Source: the two probabilities that ContextServe decides by, P(<1 s) and P(>5 s).
    """
    speeds = ("fast", "uncertain", "slow")
    table = {
        true: dict.fromkeys(speeds, 0) for true in ("fast (<= 1 s)", "between", "slow (> 5 s)")
    }
    for forecast in forecasts:
        is_over_1_s, is_over_5_s = forecast.row.is_over(1.0), forecast.row.is_over(5.0)
        if is_over_5_s:
            table["slow (> 5 s)"][forecast.speed] += 1
        elif is_over_1_s is False:
            table["fast (<= 1 s)"][forecast.speed] += 1
        elif is_over_1_s and is_over_5_s is False:
            table["between"][forecast.speed] += 1
    return table


def _measured(forecasts: Sequence[Forecast]) -> list[Forecast]:
    return [forecast for forecast in forecasts if forecast.row.bound == "exact"]


def summarize(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """Every score of these forecasts; what cannot be computed is None."""
    at = {threshold_s: scored_at(forecasts, threshold_s) for threshold_s in THRESHOLDS_S}
    table = calibration(*at[CALIBRATION_S])
    return {
        "num_test": len(forecasts),
        "num_measured": len(_measured(forecasts)),
        "auc": {f"{t:g}": auc(*pair) for t, pair in at.items()},
        "auc_measured_only": {
            f"{t:g}": auc(*scored_at(forecasts, t, exact_only=True)) for t in THRESHOLDS_S
        },
        "median_abs_log_error": median_abs_log_error(forecasts),
        "log_loss": log_loss(forecasts),
        "brier": {f"{t:g}": brier(*pair) for t, pair in at.items()},
        "calibration_over_5_s": table,
        "calibration_error_over_5_s": calibration_error(table),
        "pit_shares": pit_shares(forecasts),
        "speed_confusion": speed_confusion(forecasts),
    }
