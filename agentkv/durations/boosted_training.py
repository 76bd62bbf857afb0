"""Trains ContextServe's boosted layer offline; LightGBM is needed for this, not for predicting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentkv.commands import analyze_command
from agentkv.commands.features import command_features
from agentkv.durations.observation import Observation
from agentkv.durations.prediction import SLOW_S
from agentkv.durations.trees import TreeEnsemble

NUM_TREES = 60
MAX_DEPTH = 4

# One thread and row-wise histograms: the same trees on every machine under one seed.
_SETTINGS = {
    "objective": "binary",
    "learning_rate": 0.1,
    "max_depth": MAX_DEPTH,
    "num_leaves": 2**MAX_DEPTH,
    "min_data_in_leaf": 20,
    "lambda_l2": 1.0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


def train_boosted(observations: Sequence[Observation], *, seed: int = 0) -> TreeEnsemble:
    """The log-odds that a command is slow, over `commands.features`; deterministic under `seed`.

    Needs LightGBM (ImportError without). Raises ValueError where not both slow and other commands
    are among the observations.
    """
    import lightgbm
    import numpy

    rows = list(labelled(observations))
    if len({is_slow for _, is_slow in rows}) < 2:
        raise ValueError(
            f"training needs commands over and under {SLOW_S:g} s, got {len(rows)} of one kind"
        )
    features = numpy.array([command_features(analyze_command(text)) for text, _ in rows])
    labels = numpy.array([is_slow for _, is_slow in rows], dtype=float)
    booster = lightgbm.train(
        {**_SETTINGS, "seed": seed}, lightgbm.Dataset(features, labels), num_boost_round=NUM_TREES
    )
    return TreeEnsemble.from_lightgbm(booster.dump_model())


def labelled(observations: Sequence[Observation]) -> Iterator[tuple[str, bool]]:
    """Commands and whether they were slow; a bound that leaves that open drops the command."""
    for observation in observations:
        is_over = observation.duration_s > SLOW_S
        if observation.bound != ("upper" if is_over else "lower"):
            yield observation.command, is_over
