"""The published baselines: empirical distributions of earlier runs, looked up by a key.

`empirical` looks up the main program with its subcommand, then its name, then all commands;
`first_word` the first word of the text (`cd /testbed && pytest` is a `cd`), then all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from agentkv.commands import analyze_command
from agentkv.durations import Prediction
from agentkv.durations.context_serve import COLD_START, main_program
from agentkv.durations.posterior import WINDOW
from agentkv.durations.prediction import ANY_COMMAND, TTL_SHARE, prediction, summary, verdict

Run = tuple[float, bool]
"""Seconds, and whether that is a lower bound only."""


@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """The product-limit estimate of runs, the longest of which counts as measured (Efron)."""

    survival: Any

    @classmethod
    def of(cls, runs: list[Run]) -> KaplanMeier:
        longest_s = max(seconds for seconds, _ in runs)
        sample = stats.CensoredData(
            uncensored=[s for s, is_cut in runs if not is_cut or s == longest_s],
            right=[s for s, is_cut in runs if is_cut and s < longest_s],
        )
        return cls(stats.ecdf(sample).sf)

    def p_over(self, seconds: float) -> float:
        """Share, 0 to 1, of the runs that took longer than `seconds`."""
        return float(self.survival.evaluate(seconds))

    def quantile_s(self, share: float) -> float:
        """The shortest duration within which at least this share (0 to 1) of the runs ended."""
        is_within = self.survival.probabilities <= 1.0 - share + 1e-9
        return float(self.survival.quantiles[np.argmax(is_within)])


class Lookup:
    """The latest WINDOW runs of the first of a command's keys that has at least `min_runs`."""

    def __init__(self, name: str, keys: Callable[[str], list[str]], min_runs: int) -> None:
        self._name = name
        self._keys = keys
        self._min_runs = min_runs
        self._runs: dict[tuple[int, str], deque[Run]] = defaultdict(partial(deque, maxlen=WINDOW))

    def observe(self, command: str, duration_s: float, *, censored: bool = False) -> None:
        for place in enumerate(self._keys(command)):
            self._runs[place].append((duration_s, censored))

    def predict(self, command: str) -> Prediction:
        keys = list(enumerate(self._keys(command)))
        known = [place for place in keys if len(self._runs.get(place, ())) >= self._min_runs]
        if not known:
            why = f"fewer than {self._min_runs} runs so far"
            return prediction(
                "uncertain", ANY_COMMAND, fast_ttl_s=0.0, source=self._name, explanation=why
            )
        distribution = KaplanMeier.of(list(self._runs[known[0]]))
        return prediction(
            verdict(distribution),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source=self._name,
            explanation=f"runs of {known[0][1]!r}: {summary(distribution)}",
        )


def empirical() -> Lookup:
    def keys(command: str) -> list[str]:
        program = main_program(analyze_command(command))
        # without a program: keys that only such commands have, then all commands
        return ["", "", "all"] if program is None else [program.key, program.name, "all"]

    return Lookup("empirical", keys, COLD_START)


def first_word() -> Lookup:
    return Lookup("first_word", lambda command: [*command.split()[:1], "all"], 1)


BASELINES: dict[str, Callable[[], Lookup]] = {"empirical": empirical, "first_word": first_word}
