"""ContextServe's predictor: its layers, asked in order until one of them decides.

1. Lists of fast and slow programs. 2. The Normal-Inverse-Gamma posterior over ln(seconds) of the
command's context (`python:-m:pytest`), else of its tool, with enough runs. 3. Boosted trees over 25
features. Else uncertain. Source for layers, lists, features and thresholds: ContextServe. It leaves
open when a layer passes a command on: the conditions on runs and features are ours, as is the rule
that the programs that run are matched, not the text. The posterior's predictive distribution is
Student's t, taken as the log-normal with the same quartiles.
"""

from __future__ import annotations

import json
import math
import re
from collections import OrderedDict, deque
from functools import cache
from importlib import resources
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.programs import TABLES, by_name, module_of
from agentkv.durations.prediction import (
    FAST_S,
    SLOW_S,
    SURE,
    LogNormal,
    Prediction,
    Speed,
    prediction,
    summary,
    verdict,
)

FAST_TTL_S, TTL_SHARE = 3.0, 0.9
"""The pin of a listed fast program, and the share of its runs that any other's outlasts."""
FAST, SLOW = (frozenset(TABLES["context_serve"][name].split()) for name in ("fast", "slow"))
_ENDS_EARLY = re.compile(r"-[vqsl]*x[vqsl]*|--exitfirst|--collect-only")
_DOWNLOADS = re.compile(r"-[fgiksLS]*[oO].*|--output|--remote-name")
LISTED_SPREAD_LN = 1.47
"""Standard deviation of ln(seconds) of a coding agent's commands. Source: a Go project's have a
median of 1.4 s and a 0.9 quantile of 9.2 s (traces of entireio/cli). A list's verdict is as sure
as a posterior's has to be."""
_SURE_LN = NormalDist().inv_cdf(SURE) * LISTED_SPREAD_LN
_LISTED: dict[Speed, LogNormal] = {
    "fast": LogNormal(math.log(FAST_S) - _SURE_LN, LISTED_SPREAD_LN),
    "slow": LogNormal(math.log(SLOW_S) + _SURE_LN, LISTED_SPREAD_LN),
}

COLD_START, WINDOW = 5, 200
"""Observations from which on a level is used, and the latest kept. Source: ContextServe."""
PRIOR_MEAN, PRIOR_WEIGHT, PRIOR_SHAPE, PRIOR_SCALE = 0.0, 1.0, 1.0, 1.0
MAX_WINDOWS = 256
_MAX_SAVED = 1e4

SLOW_OVER, FAST_UNDER = 0.8, 0.2
BOOSTED_SPREAD_LN = 0.9
"""The likeliest on the later part of the training data, with trees from the earlier part."""
_LOG_ODDS_LIMIT = 7.0
CLASSES = ("read", "search", "edit", "build", "test", "git", "network", "install")
_CLASS_OF_NAME, _CLASS_OF_WORD = (
    by_name(TABLES[table]) for table in ("class_of_name", "class_of_word")
)


class ContextServeEstimator:
    """The published predictor: cold from lists and trees, learning by the posteriors alone."""

    def __init__(self) -> None:
        self._windows: OrderedDict[str, deque[tuple[float, float]]] = OrderedDict()
        """Means and variances of ln(seconds) by context and tool; under "" of all commands. The
        variance is 0 but for a run that was cut off."""

    def predict(self, command: CommandAnalysis) -> Prediction:
        speed, decisive = listed_speed(command)
        if speed != "uncertain":
            names = ", ".join(dict.fromkeys(each.key for each in decisive[:4]))
            explanation = f"On the list of {speed} programs: {names}."
            return prediction(speed, _LISTED[speed], FAST_TTL_S, "rules", explanation)
        key = self._warm_key(decisive)
        distribution = self._distribution(key)
        if key:  # its "uncertain" is an answer too, since it rests on runs of this very tool
            ttl_s, num_runs = distribution.quantile_s(TTL_SHARE), len(self._windows[key])
            explanation = f"Posterior after {num_runs} runs of `{key}`: {summary(distribution)}"
            return prediction(verdict(distribution), distribution, ttl_s, "bayes", explanation)
        # of a program without a feature the trees see the command's length and little else, and
        # call all of them fast, as most commands are
        if decisive and classes_of(decisive[0]):
            boosted = boosted_prediction(command)
            if boosted.speed != "uncertain":
                return boosted
        unknown = f"`{decisive[0].key}`" if decisive else "a command that runs nothing"
        explanation = (
            f"No layer is sure of {unknown}: on no list, observed fewer than {COLD_START} times, "
            "and its features do not tell."
        )
        return prediction("uncertain", distribution, 0.0, "fallback", explanation)

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        """Learn one run; of a censored one, what was known of the command before says how long."""
        _, decisive = listed_speed(command)
        mean, variance = math.log(duration_s), 0.0
        if censored:
            mean, variance = self._distribution(self._warm_key(decisive)).beyond(duration_s)
        for key in ("", *_keys_of(decisive)):
            window = self._windows.pop(key, None) or deque(maxlen=WINDOW)
            window.append((mean, variance))
            self._windows[key] = window
        while len(self._windows) > MAX_WINDOWS:
            self._windows.popitem(last=False)

    def _warm_key(self, decisive: list[Program]) -> str:
        """Return the most specific level past its cold start; empty for that of all commands."""
        warm = (key for key in _keys_of(decisive) if len(self._windows.get(key, ())) >= COLD_START)
        return next(warm, "")

    def _distribution(self, key: str) -> LogNormal:
        """Return the posterior of one level, as the distribution of its next run."""
        runs = self._windows.get(key, ())
        weight, total = PRIOR_WEIGHT + len(runs), sum(mean for mean, _ in runs)
        mean = (PRIOR_WEIGHT * PRIOR_MEAN + total) / weight
        squares = sum(m * m + variance for m, variance in runs) - weight * mean * mean
        shape = PRIOR_SHAPE + len(runs) / 2
        scale = PRIOR_SCALE + max(squares, 0.0) / 2
        variance = scale * (weight + 1) / (shape * weight)
        return LogNormal(mean, math.sqrt(variance) * (1 + 0.11 / shape))

    def state(self) -> dict[str, Any]:
        return {key: list(runs) for key, runs in self._windows.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned. Raises TypeError or ValueError for other data."""
        for key, runs in list(state.items())[-MAX_WINDOWS:]:
            self._windows[key] = deque(((mean, variance) for mean, variance in runs), WINDOW)
            for mean, variance in runs:
                if not (abs(mean) <= _MAX_SAVED and 0 <= variance <= _MAX_SAVED):
                    raise ValueError(f"not a mean and a variance: {mean!r}, {variance!r}")


def _keys_of(decisive: list[Program]) -> list[str]:
    return list(dict.fromkeys((decisive[0].key, decisive[0].name))) if decisive else []


def listed_speed(command: CommandAnalysis) -> tuple[Speed, list[Program]]:
    """Return the lists' verdict on a whole command and the programs that decided it.

    One slow program makes it slow, and it is fast if all are. Programs in the background count only
    if nothing else runs.
    """
    programs = [each for each in command.programs if each.name != "wait"]
    if len(programs) == len(command.programs):
        programs = [each for each in programs if not each.is_background]
    by_speed: dict[Speed, list[Program]] = {"slow": [], "uncertain": [], "fast": []}
    for program in programs or command.programs:
        by_speed[_speed_of(program)].append(program)
    return next((found for found in by_speed.items() if found[1]), ("uncertain", []))


def _speed_of(program: Program) -> Speed:
    program = module_of(program)
    name, words = program.name, program.argv[1:]
    if name == "pytest":
        return "uncertain" if any(map(_ENDS_EARLY.fullmatch, words)) else "slow"
    if name == "curl":
        return "slow" if any(map(_DOWNLOADS.fullmatch, words)) else "uncertain"
    if name == "find":
        is_shallow = not {("-maxdepth", "1"), ("-maxdepth", "2")}.isdisjoint(pairwise(words))
        return "fast" if is_shallow else "uncertain"
    if not FAST.isdisjoint((name, program.key)):
        return "fast"
    return "slow" if not SLOW.isdisjoint((name, program.key)) else "uncertain"


def boosted_prediction(command: CommandAnalysis) -> Prediction:
    """Return what the trees say: slow with a probability over 0.8, fast under 0.2.

    They learned offline. ContextServe uses XGBoost, these are LightGBM's. They give the probability
    of more than 5 s; the distribution around it is log-normal with one spread for all commands.
    """
    features = command_features(command)
    log_odds = 0.0
    for node in _trees():
        while isinstance(node, list):
            feature, threshold, low, high = node
            node = low if features[feature] <= threshold else high
        log_odds += node
    p_slow = 1.0 / (1.0 + math.exp(-max(-_LOG_ODDS_LIMIT, min(log_odds, _LOG_ODDS_LIMIT))))
    mean_ln = math.log(SLOW_S) + BOOSTED_SPREAD_LN * NormalDist().inv_cdf(p_slow)
    found = LogNormal(mean_ln, BOOSTED_SPREAD_LN)
    speed: Speed = "slow" if p_slow > SLOW_OVER else "fast" if p_slow < FAST_UNDER else "uncertain"
    explanation = f"By its features {p_slow:.0%} of such commands take over {SLOW_S:g} s."
    return prediction(speed, found, found.quantile_s(TTL_SHARE), "boosted", explanation)


@cache
def _trees() -> list[Any]:
    """Read the trees: `[feature, threshold, branch at or below it, branch above it]` or a leaf."""
    text = resources.files("agentkv.durations").joinpath("trees.json").read_text("utf-8")
    trees: list[Any] = json.loads(text)["boosted"]
    return trees


def classes_of(program: Program) -> set[str]:
    """Return the classes of CLASSES that a program belongs to: none, one or several."""
    words = (_CLASS_OF_WORD.get(part) for part in program.key.split(":")[1:])
    return {kind for kind in (_CLASS_OF_NAME.get(program.name), *words) if kind}


def command_features(command: CommandAnalysis) -> list[float]:
    """Return the 25 features of a command as the trees number them; flags are 0 or 1."""
    programs, marks = command.programs, command.marks
    words = [word for program in programs for word in program.argv]
    flags = "".join(word for word in words if word[:1] == "-" and word[1:2] != "-")
    classes = {kind for program in programs for kind in classes_of(program)}
    pythons = [program for program in programs if program.name == "python"]
    features = [
        *(len(words) - len(programs), len(command.text), len(programs), marks.count("|")),
        *("|" in marks, ">" in marks, ";" in marks or "\n" in marks, "&&" in marks),
        *("do" in marks, "(" in marks),
        *("r" in flags or "R" in flags, "v" in flags, "f" in flags),
        *(name in classes for name in CLASSES),
        any(program.key == "python:-c" for program in pythons),
        any(program.key.startswith("python:-m:") for program in pythons),
        any("test" in word for program in pythons for word in program.argv[1:]),
        any(word.endswith(".py") for word in words),
    ]
    return [float(feature) for feature in features]
