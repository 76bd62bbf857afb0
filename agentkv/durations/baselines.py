"""The empirical distribution of a window of durations, some of them known as lower bounds only.

Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations" (1958), with
Efron's convention that the largest duration counts as measured.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass
from typing import Any

from agentkv.commands import CommandAnalysis
from agentkv.durations.context_serve import Levels
from agentkv.durations.posterior import WINDOW, RecentWindows
from agentkv.durations.prediction import (
    ANY_COMMAND,
    TTL_SHARE,
    Prediction,
    counted,
    prediction,
    summary,
    verdict,
)

_MAX_SAVED_S = 1e9


@dataclass(frozen=True, slots=True)
class Steps:
    """A distribution of steps: `p_over_s[i]` of the runs take longer than `durations_s[i]`."""

    durations_s: tuple[float, ...]
    p_over_s: tuple[float, ...]

    def p_over(self, seconds: float) -> float:
        """Share, 0 to 1, of the runs that took longer than `seconds`."""
        index = bisect_right(self.durations_s, seconds)
        return self.p_over_s[index - 1] if index else 1.0

    def quantile_s(self, share: float) -> float:
        """The shortest duration within which at least this share (0 to 1) of the runs ended."""
        left = bisect_left(self.p_over_s, share - 1.0 - 1e-9, key=lambda p_over: -p_over)
        return self.durations_s[min(left, len(self.durations_s) - 1)]


class DurationCurve:
    """The latest durations of one key, and the distribution that they make."""

    __slots__ = ("_in_order", "_sorted", "_steps")

    def __init__(self) -> None:
        self._in_order: deque[tuple[float, bool]] = deque()
        self._sorted: list[tuple[float, bool]] = []
        self._steps: Steps | None = None

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, duration_s: float, *, censored: bool) -> None:
        """Add one duration; the oldest goes when the window is full."""
        if len(self._in_order) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._in_order.popleft())]
        self._in_order.append((duration_s, censored))
        insort(self._sorted, (duration_s, censored))
        self._steps = None

    def distribution(self) -> Steps:
        """The curve of at least one duration. O(window) after an `add`, else O(1)."""
        if self._steps is None:
            self._steps = _kaplan_meier(self._sorted)
        return self._steps

    def explanation(self, what: str) -> str:
        """A sentence with the counts behind the distribution; `what` names what was run."""
        num_cut = sum(is_censored for _, is_censored in self._sorted)
        cut = f" ({num_cut} of them cut off)" if num_cut else ""
        return f"{counted(len(self), 'run')} of {what}{cut}: {summary(self.distribution())}"

    def state(self) -> list[list[float]]:
        return [[duration_s, int(is_censored)] for duration_s, is_censored in self._in_order]

    def restore(self, state: Any) -> None:
        """Raises TypeError or ValueError where the data does not fit."""
        for duration_s, is_censored in state[-WINDOW:]:
            if not 0 <= duration_s <= _MAX_SAVED_S:
                raise ValueError(f"not a duration in seconds: {duration_s!r}")
            self.add(float(duration_s), censored=bool(is_censored))


def _kaplan_meier(durations: list[tuple[float, bool]]) -> Steps:
    """The product-limit estimate over (seconds, is a lower bound), sorted."""
    durations_s, p_over_s = [], []
    p_over, num_left = 1.0, len(durations)
    for duration_s, is_censored in durations:
        num_left -= 1
        if not is_censored or not num_left:
            p_over *= num_left / (num_left + 1)
            durations_s.append(duration_s)
            p_over_s.append(p_over)
    return Steps(tuple(durations_s), tuple(p_over_s))


class EmpiricalEstimator:
    """The latest durations of the most specific level with enough of them, taken as they are."""

    def __init__(self) -> None:
        self._levels = Levels(DurationCurve)

    def predict(self, command: CommandAnalysis) -> Prediction:
        level = self._levels.best(command)
        if not level.is_warm:
            return prediction(
                "uncertain",
                ANY_COMMAND,
                fast_ttl_s=0.0,
                source="empirical",
                explanation=level.why_cold(),
            )
        distribution = level.window.distribution()
        return prediction(
            verdict(distribution),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="empirical",
            explanation=level.window.explanation(str(level)),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        for window in self._levels.to_observe(command):
            window.add(duration_s, censored=censored)

    def state(self) -> dict[str, Any]:
        return self._levels.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._levels.restore(state)


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
