"""How long a bash command will run: predictors behind one interface, and the TTL rules."""

from agentkv.durations.prediction import Prediction
from agentkv.durations.predictor import KINDS, DurationPredictor
from agentkv.durations.trees import OfflineModels

__all__ = ["KINDS", "DurationPredictor", "OfflineModels", "Prediction"]
