"""Duration predictors: the base class to write one, the values it gives, and the shipped ones.

Importable without vLLM. `INTERFACE_VERSION` rises when a predictor has to be changed.
"""

from agentkv.commands import CommandAnalysis, Program
from agentkv.durations.backoff import BackoffEstimator
from agentkv.durations.context_serve import ContextServeEstimator
from agentkv.durations.prediction import (
    ANY_COMMAND,
    Distribution,
    LogNormal,
    Prediction,
    Predictor,
)
from agentkv.durations.predictor import (
    KINDS,
    DurationPredictor,
    PredictorSettings,
    load_predictor,
    predictor_names,
)

INTERFACE_VERSION = 1

__all__ = [
    "ANY_COMMAND",
    "INTERFACE_VERSION",
    "KINDS",
    "BackoffEstimator",
    "CommandAnalysis",
    "ContextServeEstimator",
    "Distribution",
    "DurationPredictor",
    "LogNormal",
    "Prediction",
    "Predictor",
    "PredictorSettings",
    "Program",
    "load_predictor",
    "predictor_names",
]
