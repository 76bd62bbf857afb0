"""`DurationPredictor`: one interface over the estimators, chosen by name, and their saved state."""

from __future__ import annotations

import json
import logging
import math
import os
from pathlib import Path

from agentkv.commands import analyze_command
from agentkv.durations.prediction import Estimator, Prediction
from agentkv.durations.trees import OfflineModels

logger = logging.getLogger(__name__)

KINDS = ("default", "context_serve", "rules", "bayes", "boosted", "empirical", "first_word")
MIN_DURATION_S = 1e-3
MAX_DURATION_S = 1e6
"""Durations are taken as lying within these; 0 and a billion seconds are no outliers of a fit."""
_FORMAT = 1


class DurationPredictor:
    """Predicts how long a bash command will run, and learns from the runs it is told of.

    `kind` is one of KINDS: our own predictor ("default"), ContextServe's, one of its layers, or a
    baseline. Deterministic under `seed`; memory is bounded. Not safe for concurrent use.
    Raises ValueError for an unknown kind.
    """

    def __init__(
        self, kind: str = "default", *, seed: int = 0, models: OfflineModels | None = None
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"unknown predictor {kind!r}; known: {', '.join(KINDS)}")
        self.kind = kind
        self.num_observed = 0
        self._seed = seed
        self._models = models or OfflineModels.shipped()
        self._estimator = _estimator(kind, self._models, seed)

    def predict(self, command: str) -> Prediction:
        """How long `command` will run; any text is fine, only its beginning is read.

        Raises TypeError for what is no text.
        """
        return self._estimator.predict(analyze_command(command))

    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None:
        """Learn that `command` ran for `duration_s` seconds, or, `censored`, for at least so long.

        Raises ValueError for a duration that is negative, infinite or not a number.
        """
        if not (math.isfinite(duration_s) and duration_s >= 0):
            raise ValueError(f"duration_s must be a finite number >= 0, got {duration_s!r}")
        duration_s = min(max(duration_s, MIN_DURATION_S), MAX_DURATION_S)
        self._estimator.observe(analyze_command(command), duration_s, censored=censored)
        self.num_observed += 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned as JSON, replacing an existing file as a whole. Raises OSError."""
        path = Path(path)
        document = {
            "format": _FORMAT,
            "kind": self.kind,
            "num_observed": self.num_observed,
            "state": self._estimator.state(),
        }
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        with partial.open("w", encoding="utf-8") as file:
            # in pieces: a server's engine runs on between them
            json.dump(document, file)
        partial.replace(path)

    def load(self, path: str | os.PathLike[str]) -> bool:
        """Take up what `save` wrote; what was learned before is dropped.

        A file that is missing, corrupt or of another kind is a warning, False, and a fresh start.
        """
        self._estimator = _estimator(self.kind, self._models, self._seed)
        self.num_observed = 0
        try:
            document = json.loads(Path(path).read_text("utf-8"))
            if document["format"] != _FORMAT or document["kind"] != self.kind:
                raise ValueError(f"it holds {document['kind']!r}, format {document['format']!r}")
            self._estimator.restore(document["state"])
            if not isinstance(document["num_observed"], int):
                raise TypeError(f"num_observed is {document['num_observed']!r:.20}")
            self.num_observed = document["num_observed"]
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            IndexError,
            ArithmeticError,
            RecursionError,
        ) as error:
            logger.warning(
                "%s: not a state of predictor %r (%s: %s); starting with nothing learned",
                path,
                self.kind,
                type(error).__name__,
                error,
            )
            self._estimator = _estimator(self.kind, self._models, self._seed)
            return False
        return True


def _estimator(kind: str, models: OfflineModels, seed: int) -> Estimator:
    if kind == "rules":
        from agentkv.durations.context_serve import RulesEstimator

        return RulesEstimator()
    if kind == "bayes":
        from agentkv.durations.context_serve import BayesEstimator

        return BayesEstimator(seed=seed)
    if kind == "boosted":
        from agentkv.durations.context_serve import BoostedEstimator

        return BoostedEstimator(models.boosted)
    if kind == "empirical":
        from agentkv.durations.baselines import EmpiricalEstimator

        return EmpiricalEstimator()
    if kind == "first_word":
        from agentkv.durations.baselines import FirstWordEstimator

        return FirstWordEstimator()
    if kind == "context_serve":
        from agentkv.durations.context_serve import ContextServeEstimator

        return ContextServeEstimator(models.boosted, seed=seed)
    from agentkv.durations.backoff import BackoffEstimator

    return BackoffEstimator(models.prior)
