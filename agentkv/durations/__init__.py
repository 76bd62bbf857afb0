"""How long a bash command will run: predictors behind one interface, and the TTL rules."""

from agentkv.durations.prediction import Prediction
from agentkv.durations.predictor import KINDS, DurationPredictor, PredictorSettings

__all__ = ["KINDS", "DurationPredictor", "Prediction", "PredictorSettings"]
