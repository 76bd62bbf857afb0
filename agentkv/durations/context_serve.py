"""ContextServe's predictor: its layers, asked in order until one of them decides.

1. rules: the lists of fast and slow programs.
2. bayes: where the command's context or tool has been observed often enough; its "uncertain" is
   then the answer, since it rests on this very tool.
3. boosted: where the main program is of a class that the trees have a feature for, and they are
   sure. Of a program without one they would see the command's length and little else, and call
   all of them fast, as most commands are.
4. Else uncertain, with the distribution of all commands observed so far.

Source for the layers and their order: ContextServe. It leaves open when a layer passes a command
on; the conditions under 2 and 3 are ours.
"""

from __future__ import annotations

from typing import Any

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.features import program_classes
from agentkv.durations.bayes import BayesEstimator, TTLRule
from agentkv.durations.boosted import BoostedEstimator
from agentkv.durations.levels import COLD_START, Level, main_program
from agentkv.durations.posterior import LogWindow
from agentkv.durations.prediction import Prediction
from agentkv.durations.rules import RulesEstimator
from agentkv.durations.trees import TreeEnsemble
from agentkv.durations.verdicts import prediction


class ContextServeEstimator:
    """The published predictor, cold from lists and trees, and learning per context and tool."""

    def __init__(
        self, boosted: TreeEnsemble, *, seed: int = 0, ttl_rule: TTLRule = "quantile"
    ) -> None:
        self._rules = RulesEstimator()
        self._bayes = BayesEstimator(seed=seed, ttl_rule=ttl_rule)
        self._boosted = BoostedEstimator(boosted)

    def predict(self, command: CommandAnalysis) -> Prediction:
        listed = self._rules.predict(command)
        if listed.speed != "uncertain":
            return listed
        level = self._bayes.best_level(command)
        if level.is_warm and level.key is not None:
            return self._bayes.predict_from(level)
        program = main_program(command)
        if program is not None and program_classes(program):
            boosted = self._boosted.predict(command)
            if boosted.speed != "uncertain":
                return boosted
        return self._fallback(program, level)

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        self._bayes.observe(command, duration_s, censored=censored)

    def state(self) -> dict[str, Any]:
        return self._bayes.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._bayes.restore(state)

    def _fallback(self, program: Program | None, level: Level[LogWindow]) -> Prediction:
        unknown = f"`{program.key}`" if program is not None else "a command that runs nothing"
        return prediction(
            "uncertain",
            self._bayes.predict_from(level).distribution,
            fast_ttl_s=0.0,
            source="fallback",
            explanation=(
                f"No layer is sure of {unknown}: it is on no list, was observed fewer than "
                f"{COLD_START} times, and its features do not tell."
            ),
        )
