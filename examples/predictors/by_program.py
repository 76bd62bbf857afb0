"""Predicts by the program that runs: the median of its last runs, with any arguments.

    agentkv predict "make" --kind examples/predictors/by_program.py:ByProgram
    vllm serve MODEL --scheduling-policy agentkv \\
        --additional-config '{"agentkv": {"predictor": "./by_program.py:ByProgram"}}'
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from statistics import median
from typing import Any

from agentkv.predictors import ANY_COMMAND, CommandAnalysis, LogNormal, Prediction, Predictor

MAX_PROGRAMS = 500
"""The program that was not observed for longest is forgotten first."""
NUM_RUNS = 20
SPREAD_LN = 0.8
"""Two thirds of a program's runs last its median within a factor of e^0.8 = 2.2. Chosen."""


class ByProgram(Predictor):
    """One median a program; a command that runs several takes as long as the slowest of them."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, deque[float]] = OrderedDict()

    def predict(self, command: CommandAnalysis) -> Prediction:
        medians = {
            program.name: median(self._runs[program.name])
            for program in command.programs
            if program.name in self._runs
        }
        if not medians:
            return Prediction.of(ANY_COMMAND, source="none", explanation="No run of it was seen.")
        slowest = max(medians, key=medians.__getitem__)
        return Prediction.of(
            LogNormal(math.log(medians[slowest]), SPREAD_LN),
            source="program",
            explanation=f"Half the runs of {slowest} took less than {medians[slowest]:.2g} s.",
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        for program in command.programs:
            runs = self._runs.setdefault(program.name, deque(maxlen=NUM_RUNS))
            self._runs.move_to_end(program.name)
            if not censored or duration_s > median(runs or [0.0]):
                runs.append(duration_s)
        while len(self._runs) > MAX_PROGRAMS:
            self._runs.popitem(last=False)

    def state(self) -> dict[str, Any]:
        return {name: list(runs) for name, runs in self._runs.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, runs in state.items():
            self._runs[name] = deque(map(float, runs), maxlen=NUM_RUNS)
