"""The simplest baseline: commands that begin with the same word last equally long.

`cd /testbed && pytest` is a `cd` to it. It knows nothing of what a command runs.
"""

from __future__ import annotations

from typing import Any

from agentkv.commands import CommandAnalysis
from agentkv.durations.curves import DurationCurve
from agentkv.durations.log_normal import ANY_COMMAND
from agentkv.durations.prediction import Prediction
from agentkv.durations.verdicts import TTL_SHARE, prediction, verdict
from agentkv.durations.windows import RecentWindows

MAX_WORDS = 256
_WORD_CHARS = 100


class FirstWordEstimator:
    """The empirical distribution of the first word; of all commands where the word is new."""

    def __init__(self) -> None:
        self._by_word = RecentWindows(DurationCurve, MAX_WORDS)
        self._all = DurationCurve()

    def predict(self, command: CommandAnalysis) -> Prediction:
        word = _first_word(command)
        curve, what = self._by_word.get(word), f"commands that begin with `{word}`"
        if curve is None:
            curve, what = self._all, "commands of any kind"
        if not curve:
            return prediction(
                "uncertain",
                ANY_COMMAND,
                fast_ttl_s=0.0,
                source="first_word",
                explanation="No command was observed yet.",
            )
        distribution = curve.distribution()
        return prediction(
            verdict(distribution),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="first_word",
            explanation=curve.explanation(what),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        self._by_word.to_observe(_first_word(command)).add(duration_s, censored=censored)
        self._all.add(duration_s, censored=censored)

    def state(self) -> dict[str, Any]:
        return {"by_word": self._by_word.state(), "all": self._all.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._by_word.restore(state["by_word"])
        self._all.restore(state["all"])


def _first_word(command: CommandAnalysis) -> str:
    words = command.text.split(maxsplit=1)
    return words[0][:_WORD_CHARS] if words else ""
