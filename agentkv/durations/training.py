"""Trains the offline models on measured runs; needs LightGBM, which predicting does not.

LightGBM rather than xgboost: the same trees, a public dump, and a wheel without 300 MB of CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentkv.commands import analyze_command
from agentkv.durations.boosted_training import train_boosted
from agentkv.durations.grid import LOWEST_S
from agentkv.durations.models import OfflineModels
from agentkv.durations.observation import Observation
from agentkv.durations.prior_features import FEATURES, prior_input
from agentkv.durations.trees import TreeEnsemble

MIN_OBSERVATIONS = 100
_NUM_TREES = 40
_PARAMETERS = {
    # robust to the runs that hang; its bend is 1.5 in ln(seconds)
    "objective": "huber",
    "alpha": 1.5,
    "num_leaves": 6,
    "learning_rate": 0.1,
    "min_data_in_leaf": 40,
    "lambda_l2": 20.0,
    "boost_from_average": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
_BOUND_WEIGHT = 0.5
_LN_BELOW_BOUND = -1.6
"""A run known to be shorter than a bound is taken as a fifth of it: the mean of ln(uniform) is -1,
and short runs are more common than long ones."""
_LN_ABOVE_BOUND = 0.7


def train_models(observations: Sequence[Observation], *, seed: int = 0) -> OfflineModels:
    """Both models from the same runs; deterministic under `seed`.

    Raises ValueError for fewer than MIN_OBSERVATIONS, or runs that are all fast or all slow.
    """
    if len(observations) < MIN_OBSERVATIONS:
        raise ValueError(f"{len(observations)} runs are too few, {MIN_OBSERVATIONS} are needed")
    return OfflineModels(
        boosted=train_boosted(observations, seed=seed), prior=train_prior(observations, seed=seed)
    )


def train_prior(observations: Sequence[Observation], *, seed: int = 0) -> TreeEnsemble:
    """Trees that add to ln(typical seconds) what the shape of a command tells."""
    import lightgbm
    import numpy as np

    given = [prior_input(analyze_command(run.command)) for run in observations]
    data = lightgbm.Dataset(
        np.array([each.features for each in given]),
        np.array([_ln_s(run) for run in observations]),
        weight=np.array([1.0 if run.bound == "exact" else _BOUND_WEIGHT for run in observations]),
        init_score=np.array([math.log(each.typical_s) for each in given]),
        feature_name=list(FEATURES),
        params={"verbose": -1},
    )
    booster = lightgbm.train({**_PARAMETERS, "seed": seed}, data, _NUM_TREES)
    return TreeEnsemble.from_lightgbm(booster.dump_model())


def _ln_s(run: Observation) -> float:
    ln_s = math.log(max(run.duration_s, LOWEST_S))
    return ln_s + {"exact": 0.0, "upper": _LN_BELOW_BOUND, "lower": _LN_ABOVE_BOUND}[run.bound]
