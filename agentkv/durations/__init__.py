"""How long a bash command will run: predictors behind one interface, and the TTL rules."""

from agentkv.durations.prediction import Prediction, Predictor
from agentkv.durations.predictor import (
    KINDS,
    DurationPredictor,
    PredictorSettings,
    load_predictor,
    predictor_names,
)
from agentkv.durations.trees import OfflineModels

__all__ = [
    "KINDS",
    "DurationPredictor",
    "OfflineModels",
    "Prediction",
    "Predictor",
    "PredictorSettings",
    "load_predictor",
    "predictor_names",
]
