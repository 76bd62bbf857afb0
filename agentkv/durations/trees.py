"""Gradient-boosted trees, trained offline and evaluated in plain Python.

The default predictor and ContextServe's third layer start from them. Evaluating takes a few
microseconds and no library; a library's call overhead alone is over a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

Node = tuple[int, float, Any, Any]
"""(feature index, threshold, branch at or below it, branch above it); a leaf is a float."""


class TreeEnsemble:
    """The sum of trees over a vector of numeric features."""

    __slots__ = ("trees",)

    def __init__(self, trees: Sequence[Node | float]) -> None:
        self.trees = tuple(trees)

    def raw_score(self, features: Sequence[float]) -> float:
        """Return the sum of the leaves reached: a log-odds, or a mean, as the model was trained."""
        total = 0.0
        for node in self.trees:
            while type(node) is tuple:
                node = node[2] if features[node[0]] <= node[1] else node[3]
            total += node  # type: ignore[operator]
        return total


def _from_json(node: Any) -> Node | float:
    if not isinstance(node, list):
        return float(node)
    feature, threshold, low, high = node
    return (int(feature), float(threshold), _from_json(low), _from_json(high))


@dataclass(frozen=True, slots=True)
class OfflineModels:
    """The trees that predictors start from: the shipped ones, or those of one's own traces.

    `boosted` gives the log-odds that a command is slow, over `commands.features`; `prior` the mean
    of ln(seconds), over `prior.FEATURES`.
    """

    boosted: TreeEnsemble
    prior: TreeEnsemble

    @staticmethod
    @cache
    def shipped() -> OfflineModels:
        """Return the models in the package; read once."""
        text = resources.files("agentkv.durations").joinpath("models.json").read_text("utf-8")
        return OfflineModels.from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Return nested tuples, which JSON writes as lists."""
        return {"boosted": self.boosted.trees, "prior": self.prior.trees}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> OfflineModels:
        """Take back what `to_dict` returned. Raises KeyError, TypeError or ValueError otherwise."""
        boosted, prior = (
            TreeEnsemble(list(map(_from_json, data[name]))) for name in ("boosted", "prior")
        )
        return cls(boosted, prior)
