"""Evaluates gradient-boosted regression trees in plain Python, so that predicting needs no library.

One prediction is a few microseconds; a library's call overhead alone is over a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
