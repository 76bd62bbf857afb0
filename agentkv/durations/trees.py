"""Gradient-boosted trees: trained offline with LightGBM, evaluated in plain Python.

The default predictor and ContextServe's third layer start from them. Evaluating takes a few
microseconds and no library; a library's call overhead alone is over a hundred. LightGBM rather than
XGBoost, whose Linux wheel brings 300 MB of CUDA libraries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from agentkv.commands import analyze_command
from agentkv.commands.features import command_features
from agentkv.durations.grid import LOWEST_S
from agentkv.durations.prediction import SLOW_S
from agentkv.durations.prior import FEATURES, prior_input

Node = tuple[int, float, Any, Any]
"""(feature index, threshold, branch at or below it, branch above it); a leaf is a float."""


class TreeEnsemble:
    """The sum of trees over a vector of numeric features."""

    __slots__ = ("_trees",)

    def __init__(self, trees: Sequence[Node | float]) -> None:
        self._trees = tuple(trees)

    def __len__(self) -> int:
        return len(self._trees)

    def raw_score(self, features: Sequence[float]) -> float:
        """The sum of the leaves reached: a log-odds, or a mean, as the model was trained."""
        total = 0.0
        for node in self._trees:
            while type(node) is tuple:
                node = node[2] if features[node[0]] <= node[1] else node[3]
            total += node  # type: ignore[operator]
        return total

    @classmethod
    def from_lightgbm(cls, dump: dict[str, Any]) -> TreeEnsemble:
        """From `Booster.dump_model()`, for numeric features without missing values."""
        return cls([_from_lightgbm(tree["tree_structure"]) for tree in dump["tree_info"]])

    def to_list(self) -> list[Any]:
        """Nested lists, for JSON."""
        return [_as_list(tree) for tree in self._trees]

    @classmethod
    def from_list(cls, trees: list[Any]) -> TreeEnsemble:
        """The inverse of `to_list`. Raises TypeError or ValueError for other data."""
        return cls([_from_list(tree) for tree in trees])


def _from_lightgbm(node: dict[str, Any]) -> Node | float:
    if "leaf_value" in node:
        return float(f"{node['leaf_value']:.5g}")
    if node["decision_type"] != "<=":
        raise ValueError(f"only numeric splits are understood, got {node['decision_type']!r}")
    return (
        int(node["split_feature"]),
        float(f"{node['threshold']:.6g}"),
        _from_lightgbm(node["left_child"]),
        _from_lightgbm(node["right_child"]),
    )


def _as_list(node: Node | float) -> Any:
    if isinstance(node, float):
        return node
    return [node[0], node[1], _as_list(node[2]), _as_list(node[3])]


def _from_list(node: Any) -> Node | float:
    if isinstance(node, list):
        feature, threshold, low, high = node
        return (int(feature), float(threshold), _from_list(low), _from_list(high))
    return float(node)


@dataclass(frozen=True, slots=True)
class OfflineModels:
    """`boosted`: log-odds that a command is slow, over `commands.features`. `prior`: the mean of
    ln(seconds), over `durations.prior_features`."""

    boosted: TreeEnsemble
    prior: TreeEnsemble

    @classmethod
    def shipped(cls) -> OfflineModels:
        """The models in the package; read once."""
        return _shipped()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"boosted": self.boosted.to_list(), "prior": self.prior.to_list()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> OfflineModels:
        """The inverse of `to_dict`. Raises KeyError, TypeError or ValueError for other data."""
        return cls(TreeEnsemble.from_list(data["boosted"]), TreeEnsemble.from_list(data["prior"]))


@cache
def _shipped() -> OfflineModels:
    text = resources.files("agentkv.durations").joinpath("models.json").read_text("utf-8")
    return OfflineModels.from_dict(json.loads(text))


Bound = Literal["exact", "lower", "upper"]


@dataclass(frozen=True, slots=True)
class Observation:
    """A command and how long it ran, in seconds.

    `bound` says what the number is: exact; "lower", it ran at least so long (cut by a time-out);
    "upper", it ran at most so long (the measured time includes a wait for something else).
    """

    command: str
    duration_s: float
    bound: Bound = "exact"


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
