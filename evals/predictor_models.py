"""The predictors of a fold, with models trained on that fold's rows alone, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentkv.durations import DurationPredictor, Observation, OfflineModels
from agentkv.errors import AgentKVError

from .predictor_replay import Predictor
from .predictor_splits import Fold
from .workload.traces import TracedCommand

USE_MODELS = frozenset({"default", "context_serve", "boosted"})
"""Kinds that predict from models trained offline; without them nothing is trained."""
_MAX_SHOWN_CHARS = 80


class ModelsError(AgentKVError, ValueError):
    """Models that cannot be read, or rows that they cannot be trained on."""


@dataclass(frozen=True, slots=True)
class PredictorMaker:
    """Makes a fold's predictors, nothing observed yet.

    `models` None: trained anew for every fold, on its rows to learn from and no others.
    """

    kinds: Sequence[str]
    seed: int
    models: OfflineModels | None

    def __call__(self, fold: Fold) -> dict[str, Predictor]:
        models = self._models_for(fold)
        return {kind: DurationPredictor(kind, seed=self.seed, models=models) for kind in self.kinds}

    def _models_for(self, fold: Fold) -> OfflineModels:
        if self.models is not None:
            return self.models
        if not USE_MODELS.intersection(self.kinds):
            return OfflineModels.shipped()
        return train(fold.train, self.seed)


def train(rows: Sequence[TracedCommand], seed: int) -> OfflineModels:
    """Models from these rows; needs lightgbm. Bounds are passed on as what they are.

    ModelsError where the rows are too few or too much alike.
    """
    from agentkv.durations.trees import train_models

    observations = [Observation(row.command, row.duration_s, row.bound) for row in rows]
    try:
        models: OfflineModels = train_models(observations, seed=seed)
    except ValueError as error:
        raise ModelsError(
            f"cannot train models on {len(rows)} commands: {error}; give more traces, or judge "
            "with --models shipped"
        ) from error
    return models


def read_models(path: Path) -> OfflineModels:
    """What `write_models` wrote; ModelsError for anything else."""
    try:
        return OfflineModels.from_dict(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ModelsError(f"{path}: cannot read these models: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"[:_MAX_SHOWN_CHARS]
        raise ModelsError(
            f"{path}: no file of models ({what}); `agentkv eval-predictor --train` writes one"
        ) from error


def write_models(models: OfflineModels, path: Path) -> None:
    """As JSON without spaces: the file is shipped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(models.to_dict(), separators=(",", ":"))
    path.write_text(f"{text}\n", encoding="utf-8")
