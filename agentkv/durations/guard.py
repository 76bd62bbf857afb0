"""Asks a predictor of the user's own, and takes the default one's answer where its own fails.

A server wraps such a predictor in one, so that it can cost predictions and nothing else. Knows
nothing of the server.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any, get_args

from agentkv.commands import CommandAnalysis
from agentkv.durations.prediction import (
    ANY_COMMAND,
    FAST_S,
    SLOW_S,
    Distribution,
    Prediction,
    Predictor,
    Speed,
)
from agentkv.guard import AnswerGuard


class GuardedPredictor(AnswerGuard, Predictor):
    """A predictor that answers as the default one does where it fails, or has failed too often.

    A late answer is used; one that never comes holds up all later ones, but no step of the engine.
    """

    def __init__(self, own: Predictor, default: Predictor) -> None:
        """`own` is asked as long as it answers; both learn."""
        super().__init__()
        self._own = own
        self._default = default

    def _stand_in(self, question: str) -> Callable[..., Any]:
        sources = {"predict": self._default, "p_over": ANY_COMMAND}
        method: Callable[..., Any] = getattr(sources.get(question, Predictor()), question)
        return method

    def predict(self, command: CommandAnalysis) -> Prediction:
        answer = self._asked("predict", self._own.predict, (command,), _is_prediction)
        distribution = _GuardedDistribution(self._p_over, answer.distribution)
        return dataclasses.replace(answer, distribution=distribution)

    def _p_over(self, distribution: Distribution, seconds: float) -> float:
        """The probability by a distribution of the predictor's own; asked by policies."""
        return self._asked("p_over", distribution.p_over, (seconds,), _is_share)

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        self._default.observe(command, duration_s, censored=censored)
        self._asked("observe", self._own.observe, (command, duration_s), None, censored=censored)

    def state(self) -> dict[str, Any]:
        return self._asked("state", self._own.state, (), _is_json)

    def restore(self, state: dict[str, Any]) -> None:
        """Raises ValueError for any error of the predictor's own."""
        try:
            self._own.restore(state)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _GuardedDistribution:
    ask: Callable[[Distribution, float], float]
    own: Distribution

    def p_over(self, seconds: float) -> float:
        return self.ask(self.own, seconds)

    def quantile_s(self, share: float) -> float:
        return self.own.quantile_s(share)


def _is_prediction(answer: Prediction) -> bool:
    if not isinstance(answer, Prediction) or answer.speed not in get_args(Speed):
        return False
    times_s = (answer.p50_s, answer.p90_s, answer.ttl_s)
    texts = (answer.source, answer.explanation)
    return (
        all(_is_number(each) and 0 <= each < math.inf for each in times_s)
        and all(isinstance(each, str) for each in texts)
        and all(_is_share(answer.p_over(each)) for each in (FAST_S, SLOW_S))
    )


def _is_share(answer: float) -> bool:
    return _is_number(answer) and 0 <= answer <= 1


def _is_number(answer: float) -> bool:
    return isinstance(answer, int | float)


def _is_json(answer: dict[str, Any]) -> bool:
    return isinstance(answer, dict) and bool(json.dumps(answer))
