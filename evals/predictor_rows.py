"""From splits to rows: each predictor replayed over each fold, its forecasts scored.

A row is one predictor in one mode of one split, a plain dict ready for JSON.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentkv.commands import forget_analyses

from .predictor_regret import baseline_costs, forecast_costs
from .predictor_replay import THRESHOLDS_S, Forecast, LearningRules, Predictor, replay
from .predictor_scores import summarize
from .predictor_splits import Fold, Mode, Split
from .predictor_spread import intervals

MakePredictors = Callable[[Fold], dict[str, Predictor]]
"""New predictors by kind, nothing observed yet; models inside may come from `fold.train`."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How forecasts are scored: Continuum's weights, and the bootstrap."""

    rules: LearningRules = field(default_factory=LearningRules)
    context_blocks: int = 875
    num_resamples: int = 200
    seed: int = 0


@dataclass(slots=True)
class _Judged:
    """The forecasts of one predictor in one mode, fold by fold."""

    by_fold: dict[str, list[Forecast]] = field(default_factory=dict)

    @property
    def pooled(self) -> list[Forecast]:
        return [forecast for forecasts in self.by_fold.values() for forecast in forecasts]


def judge(
    split: Split,
    make_predictors: MakePredictors,
    scoring: Scoring,
    begin: Callable[[str], None] = lambda step: None,
) -> Iterator[dict[str, Any]]:
    """The split's rows, mode by mode, each predictor's forecasts pooled over the folds.

    A split of several folds also has `macro`, the mean of each score over the folds that
    have it. `begin` is called with the name of each step.
    """
    judged: dict[tuple[Mode, str], _Judged] = {}
    for fold in split.folds:
        begin(f"{split.name}: {fold.name}")
        for kind, predictor in make_predictors(fold).items():
            # each pays for reading the commands itself, or the first would pay for all
            forget_analyses()
            for mode, forecasts in replay(fold, predictor, split.modes, scoring.rules).items():
                judged.setdefault((mode, kind), _Judged()).by_fold[fold.name] = forecasts
    for mode in split.modes:
        for (its_mode, kind), of_kind in judged.items():
            if its_mode == mode:
                yield _row(split, mode, kind, of_kind, scoring)


def _row(split: Split, mode: Mode, kind: str, judged: _Judged, scoring: Scoring) -> dict[str, Any]:
    forecasts = judged.pooled
    reload_s, context_blocks = scoring.rules.reload_s, scoring.context_blocks
    return {
        "split": split.name,
        "mode": mode,
        "kind": kind,
        "num_train": [len(fold.train) for fold in split.folds],
        **summarize(forecasts),
        "interval_95": intervals(forecasts, num_resamples=scoring.num_resamples, seed=scoring.seed),
        "ttl": forecast_costs(forecasts, reload_s=reload_s, context_blocks=context_blocks),
        "ttl_baselines": baseline_costs(
            forecasts, reload_s=reload_s, context_blocks=context_blocks
        ),
        "sources": dict(Counter(forecast.source for forecast in forecasts).most_common(20)),
        "predict_us": _times_us([forecast.predict_us for forecast in forecasts]),
        "observe_us": _times_us([f.observe_us for f in forecasts if f.observe_us is not None]),
        **_macro(judged),
    }


def _macro(judged: _Judged) -> dict[str, Any]:
    if len(judged.by_fold) < 2:
        return {"folds": {}, "macro": None}
    folds = {name: _brief(summarize(forecasts)) for name, forecasts in judged.by_fold.items()}
    names = [f"auc_{t:g}" for t in THRESHOLDS_S] + ["median_abs_log_error", "log_loss"]
    macro = {name: _mean([fold[name] for fold in folds.values()]) for name in names}
    return {"folds": folds, "macro": macro}


def _brief(summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_test": summary["num_test"],
        **{f"auc_{name}": value for name, value in summary["auc"].items()},
        "median_abs_log_error": summary["median_abs_log_error"],
        "log_loss": summary["log_loss"],
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _times_us(times_us: Sequence[float]) -> dict[str, float] | None:
    if not times_us:
        return None
    median_us, p99_us = np.percentile(times_us, [50, 99])
    return {"median": float(median_us), "p99": float(p99_us)}
