"""What a predictor says of a command: a distribution of its duration, and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentkv.commands import CommandAnalysis

Speed = Literal["fast", "slow", "uncertain"]

FAST_S = 1.0
"""A command is fast if it ends within this many seconds. Source: ContextServe."""
SLOW_S = 5.0
"""A command is slow if it runs for longer than this many seconds. Source: ContextServe."""
SURE = 0.85
"""Probability above which a command is called fast or slow. Source: ContextServe."""


class Distribution(Protocol):
    """A distribution of durations in seconds."""

    def p_over(self, seconds: float) -> float:
        """Probability, 0 to 1, that the command runs longer than `seconds`."""

    def quantile_s(self, share: float) -> float:
        """The seconds within which this share (0 to 1, exclusive) of the runs end."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """How long a command will run.

    `speed` decides about a pin: "fast" is pinned for `ttl_s` seconds, "slow" frees at once (`ttl_s`
    is 0), "uncertain" leaves it to another rule. `source` names the layer that decided,
    `explanation` says why in a sentence.
    """

    speed: Speed
    p50_s: float
    p90_s: float
    ttl_s: float
    source: str
    explanation: str
    distribution: Distribution

    def p_over(self, seconds: float) -> float:
        """Probability, 0 to 1, that the command runs longer than `seconds`.

        Raises ValueError where that is not a number.
        """
        if math.isnan(seconds):
            raise ValueError(f"p_over: got {seconds!r}, allowed is a number of seconds")
        return self.distribution.p_over(seconds)


class Estimator(Protocol):
    """One way to predict; `state` is plain JSON data, bounded, and `restore` takes it back."""

    def predict(self, command: CommandAnalysis) -> Prediction: ...

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where the data does not fit."""
