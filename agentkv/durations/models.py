"""The models trained offline, as shipped and as `eval-predictor --train` writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from agentkv.durations.trees import TreeEnsemble


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
