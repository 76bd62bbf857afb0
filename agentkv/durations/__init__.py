"""How long a bash command will run: predictors behind one interface, and what they learn from."""

from agentkv.durations.models import OfflineModels
from agentkv.durations.observation import Observation
from agentkv.durations.prediction import Prediction
from agentkv.durations.predictor import KINDS, DurationPredictor

__all__ = ["KINDS", "DurationPredictor", "Observation", "OfflineModels", "Prediction"]
