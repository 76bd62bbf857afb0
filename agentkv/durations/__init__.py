"""How long a bash command will run: predictors behind one interface, and what they learn from."""

from agentkv.durations.prediction import Prediction
from agentkv.durations.predictor import KINDS, DurationPredictor
from agentkv.durations.trees import Observation, OfflineModels

__all__ = ["KINDS", "DurationPredictor", "Observation", "OfflineModels", "Prediction"]
