"""Scores of forecasts: ranking, error of the median, calibration, and what the TTLs cost.

A row known only by a bound counts where the bound decides: "at most 3 s" is a negative for > 5 and
> 10 s and is left out of what it cannot decide; a time-out is a positive below its bound. Knows
nothing of predictors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from .replay import EDGES_S, RELOAD_S

THRESHOLDS_S = (1.0, 2.0, 5.0, 10.0)
SHORTEST_S = 0.01
"""Durations are raised to this before their logarithm is taken; clocks in traces tick in ms."""
UNIFORM_SHARE = 0.001
"""Mixed into each forecast before its log loss, so that a sure and wrong one costs 9, not oo."""
NUM_BINS = 10
FIXED_TTL_S = 2.0


def scores(forecasts: pd.DataFrame) -> dict[str, Any]:
    """Every score of these forecasts, None or NaN where it is not defined."""
    measured = forecasts[forecasts.bound == "exact"]
    table = calibration(forecasts)
    # where durations fall in their own forecast: a tenth each if calibrated
    tenths, _ = np.histogram(measured.share_below.clip(0.0, 1.0), bins=NUM_BINS, range=(0.0, 1.0))
    return {
        "num_test": len(forecasts),
        **{f"auc_{t:g}": auc(forecasts, t) for t in THRESHOLDS_S},
        "median_abs_log_error": float(pd.Series(log_errors(forecasts)).median()),
        "log_loss": log_loss(measured),
        "calibration_error": float((table.n * (table.predicted - table.observed).abs()).sum())
        / max(1, table.n.sum()),
        "pit_shares": (tenths / max(1, len(measured))).tolist(),
        "calibration": table.reset_index(drop=True).to_dict("records"),
        "regret_s_per_turn": regret_s(forecasts, forecasts.effective_ttl_s),
        "baseline_regrets": {
            "never pinned": regret_s(forecasts, 0.0),
            f"fixed {FIXED_TTL_S:g} s": regret_s(forecasts, FIXED_TTL_S),
            "continuum": regret_s(forecasts, forecasts.continuum_ttl_s),
        },
    }


def intervals(forecasts: pd.DataFrame, *, num_resamples: int, seed: int) -> dict[str, Any]:
    """95% bootstrap intervals of the AUCs and the log error, whole sessions redrawn.

    The commands of one session resemble each other; a trace of a single session is drawn by row.
    """
    groups = list(forecasts.groupby(["trace", "session"], sort=False).indices.values())
    if len(groups) == 1:
        groups = [np.array([index]) for index in groups[0]]
    errors = log_errors(forecasts)
    rng = np.random.default_rng(seed)
    draws = [
        np.concatenate([groups[pick] for pick in rng.integers(len(groups), size=len(groups))])
        for _ in range(num_resamples)
    ]
    values = {"median_abs_log_error": [pd.Series(errors[drawn]).median() for drawn in draws]}
    for threshold_s in THRESHOLDS_S:
        probabilities = forecasts[f"over_{threshold_s:g}"].to_numpy()
        labels = is_over(forecasts, threshold_s).to_numpy()
        aucs = [_auc(probabilities[drawn], labels[drawn]) for drawn in draws]
        values[f"auc_{threshold_s:g}"] = aucs
    return {
        name: None if np.isnan(found).all() else np.nanpercentile(found, [2.5, 97.5]).tolist()
        for name, found in values.items()
    }


def is_over(rows: pd.DataFrame, threshold_s: float) -> pd.Series:
    """1.0 if the command ran longer, 0.0 if not, NaN where its bound leaves that open."""
    over = (rows.duration_s > threshold_s).astype(float)
    at_least = rows.duration_s >= threshold_s
    over[rows.bound == "lower"] = np.where(at_least[rows.bound == "lower"], 1.0, np.nan)
    return over.mask((rows.bound == "upper") & (rows.duration_s > threshold_s))


def auc(forecasts: pd.DataFrame, threshold_s: float) -> float:
    """P(a longer command scores above a shorter one), ties half; NaN if one class is missing."""
    probabilities = forecasts[f"over_{threshold_s:g}"].to_numpy()
    return _auc(probabilities, is_over(forecasts, threshold_s).to_numpy())


def _auc(probabilities: Any, labels: Any) -> float:
    long, short = probabilities[labels == 1.0], probabilities[labels == 0.0]
    num_pairs = len(long) * len(short)
    num_won = stats.rankdata(np.concatenate([long, short]))[: len(long)].sum()
    return (num_won - len(long) * (len(long) + 1) / 2) / num_pairs if num_pairs else math.nan


def log_errors(forecasts: pd.DataFrame) -> Any:
    """|ln p50 - ln duration| of every measured row, NaN of the others."""
    both = np.log(forecasts[["p50_s", "duration_s"]].clip(lower=SHORTEST_S).to_numpy())
    return np.where(forecasts.bound == "exact", np.abs(both[:, 0] - both[:, 1]), np.nan)


def log_loss(measured: pd.DataFrame) -> float:
    """Mean of -ln P(bin of the duration), bins bounded by EDGES_S; an edge is in the bin below."""
    over = np.column_stack(
        [
            np.ones(len(measured)),
            measured[[f"over_{edge_s:g}" for edge_s in EDGES_S]],
            np.zeros(len(measured)),
        ]
    )
    masses = np.clip(over[:, :-1] - over[:, 1:], 0.0, 1.0)
    fell_into = np.searchsorted(EDGES_S, measured.duration_s, side="left")
    mass = masses[np.arange(len(measured)), fell_into]
    mixed = (1.0 - UNIFORM_SHARE) * mass + UNIFORM_SHARE / masses.shape[1]
    return float(-np.log(mixed).mean()) if len(measured) else math.nan


def calibration(forecasts: pd.DataFrame) -> pd.DataFrame:
    """Per tenth of predicted P(> 5 s): rows, mean prediction, share that was longer."""
    labels = is_over(forecasts, 5.0)
    known = pd.DataFrame({"predicted": forecasts["over_5"], "observed": labels}).dropna()
    bins = (known.predicted * NUM_BINS).astype(int).clip(upper=NUM_BINS - 1)
    table = known.groupby(bins.rename("tenth")).mean().reindex(range(NUM_BINS))
    table["n"] = bins.value_counts().reindex(range(NUM_BINS), fill_value=0)
    return table


def regret_s(forecasts: pd.DataFrame, ttl_s: pd.Series | float) -> float:
    """Seconds of one context's memory per turn above knowing each duration beforehand.

    A context is held while its tool runs, at most until the TTL, and costs RELOAD_S if it must be
    rebuilt; the oracle pins what is shorter than a rebuild. No queue, no pressure. Source: the
    trade in Continuum's objective, P(tau) * benefit - tau (arXiv 2511.02230 v6).
    """
    decided = forecasts.bound != "upper"
    took_s = forecasts.duration_s[decided]
    ttls_s = (ttl_s + 0.0 * forecasts.duration_s)[decided]
    is_rebuilt = (ttls_s <= 0.0) | (took_s > ttls_s)
    cost_s = np.minimum(took_s, ttls_s) + RELOAD_S * is_rebuilt
    return float((cost_s - took_s.clip(upper=RELOAD_S)).mean()) if len(took_s) else 0.0
