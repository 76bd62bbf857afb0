"""ContextServe's predictor: its layers, asked in order until one of them decides.

`rules`: lists of fast and slow programs; `bayes`: posteriors of contexts and tools with enough
runs; `boosted`: trees over features of the command, where they have one for its main program; else
uncertain. Source for layers, lists and thresholds: ContextServe. It leaves open when a layer passes
a command on: the conditions on runs and features are ours.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from itertools import pairwise, takewhile
from statistics import NormalDist
from typing import Any, NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.features import command_features, program_classes
from agentkv.commands.program import module_argv, program_key, word_set
from agentkv.durations.posterior import LogWindow
from agentkv.durations.prediction import (
    ANY_COMMAND,
    FAST_S,
    SLOW_S,
    SURE,
    TTL_SHARE,
    LogNormal,
    Prediction,
    Predictor,
    Speed,
    counted,
    prediction,
    summary,
    verdict,
)
from agentkv.durations.trees import TreeEnsemble
from agentkv.durations.typical import TABLES

FAST_TTL_S = 3.0
FAST_PROGRAMS, FAST_KEYS, SLOW_PROGRAMS, SLOW_KEYS = (
    word_set(TABLES["context_serve"][name])
    for name in ("fast_programs", "fast_keys", "slow_programs", "slow_keys")
)
# Letters of one-letter options that take a value: the rest of such a word is no option.
_CURL_VALUES = frozenset("AbcCdDeEFhHKmPQrtTuUwxXyYz")
_PYTEST_VALUES = frozenset("ckmnopprW")

# The layer gives no distribution: a verdict is taken at its word, as the log-normal with the spread
# of any command under which it is as sure as a verdict of the next layer has to be.
_SURE_SPREADS = NormalDist().inv_cdf(SURE) * ANY_COMMAND.spread_ln
_DISTRIBUTIONS: dict[Speed, LogNormal] = {
    "fast": LogNormal(math.log(FAST_S) - _SURE_SPREADS, ANY_COMMAND.spread_ln),
    "slow": LogNormal(math.log(SLOW_S) + _SURE_SPREADS, ANY_COMMAND.spread_ln),
    "uncertain": ANY_COMMAND,
}
_MAX_NAMED = 4

COLD_START = 5
"""Observations from which on a level is used. Source: ContextServe."""
MAX_CONTEXTS = 256
MAX_TOOLS = 128
_MIN_DURATION_S = 1e-3

SLOW_OVER = 0.8
FAST_UNDER = 0.2
SPREAD_LN = 0.9
"""The likeliest on the later part of the training data, with trees from the earlier part."""
_LOG_ODDS_LIMIT = 7.0


class RulesEstimator(Predictor):
    """First layer: fast and slow by list, uncertain otherwise; learns nothing.

    ContextServe matches the command's text. Here the programs that run are matched, so that
    `cd /testbed && python -m pytest -q` is a pytest.
    """

    def predict(self, command: CommandAnalysis) -> Prediction:
        speed, programs = command_speed(command)
        names = ", ".join(dict.fromkeys(each.key for each in programs[:_MAX_NAMED])) or "nothing"
        explanations = {
            "uncertain": f"Neither the list of fast nor that of slow programs has {names}.",
            "slow": f"The list of slow programs has {names}.",
            "fast": f"The list of fast programs has all that runs: {names}.",
        }
        return prediction(
            speed,
            _DISTRIBUTIONS[speed],
            fast_ttl_s=FAST_TTL_S,
            source="rules",
            explanation=explanations[speed],
        )


class BayesEstimator(Predictor):
    """Second layer: the posterior of the most specific level with enough observations."""

    def __init__(self) -> None:
        self._contexts = RecentWindows(MAX_CONTEXTS)
        self._tools = RecentWindows(MAX_TOOLS)
        self._all = LogWindow()

    def predict(self, command: CommandAnalysis) -> Prediction:
        return self.predict_from(self.best_level(command))

    def best_level(self, command: CommandAnalysis) -> Level:
        """Return the most specific level past its cold start; else that of all commands."""
        program = main_program(command)
        if program is not None:
            for key, windows in ((program.key, self._contexts), (program.name, self._tools)):
                window = windows.get(key)
                if window is not None and len(window) >= COLD_START:
                    return Level(key, window)
        return Level(None, self._all)

    def predict_from(self, level: Level) -> Prediction:
        """Return the prediction of one level; uncertain while that is cold."""
        distribution = level.window.posterior().predictive()
        explanation = (
            f"Posterior after {len(level.window)} runs of {level}: {summary(distribution)}"
            if level.is_warm
            else f"Only {counted(len(level.window), 'run')} of {level} so far, too few to judge by."
        )
        return prediction(
            verdict(distribution) if level.is_warm else "uncertain",
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="bayes",
            explanation=explanation,
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        """Learn one run; a censored one is imputed under what was known of the command before."""
        mean, variance = math.log(max(duration_s, _MIN_DURATION_S)), 0.0
        if censored:
            mean, variance = self.best_level(command).window.posterior().beyond(mean)
        windows = [self._all]
        if (program := main_program(command)) is not None:
            windows += self._contexts.to_observe(program.key), self._tools.to_observe(program.name)
        for window in windows:
            window.add(mean, variance)

    def state(self) -> dict[str, Any]:
        return {
            "contexts": self._contexts.state(),
            "tools": self._tools.state(),
            "all": self._all.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned. Raises KeyError, TypeError or ValueError otherwise."""
        self._contexts.restore(state["contexts"])
        self._tools.restore(state["tools"])
        self._all.restore(state["all"])


class BoostedEstimator(Predictor):
    """Third layer: slow where the trees say so with a probability over 0.8, fast under 0.2.

    It learns offline only. ContextServe uses XGBoost, here it is LightGBM. The trees give the
    probability of more than 5 s; the distribution around it is log-normal with one spread for all
    commands, SPREAD_LN, and the mean at which that probability holds.
    """

    def __init__(self, trees: TreeEnsemble) -> None:
        self._trees = trees

    def predict(self, command: CommandAnalysis) -> Prediction:
        log_odds = self._trees.raw_score(command_features(command))
        log_odds = max(-_LOG_ODDS_LIMIT, min(log_odds, _LOG_ODDS_LIMIT))
        p_slow = 1.0 / (1.0 + math.exp(-log_odds))
        mean_ln = math.log(SLOW_S) + SPREAD_LN * NormalDist().inv_cdf(p_slow)
        distribution = LogNormal(mean_ln, SPREAD_LN)
        is_fast = p_slow < FAST_UNDER
        return prediction(
            "slow" if p_slow > SLOW_OVER else "fast" if is_fast else "uncertain",
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="boosted",
            explanation=(
                f"By its features alone (programs' classes, flags, pipes, length) "
                f"{p_slow:.0%} of such commands take over {SLOW_S:g} s."
            ),
        )


class ContextServeEstimator(BayesEstimator):
    """The published predictor: cold from lists and trees, learning by the posteriors alone."""

    def __init__(self, boosted: TreeEnsemble) -> None:
        super().__init__()
        self._rules = RulesEstimator()
        self._boosted = BoostedEstimator(boosted)

    def predict(self, command: CommandAnalysis) -> Prediction:
        listed = self._rules.predict(command)
        if listed.speed != "uncertain":
            return listed
        level = self.best_level(command)
        # its "uncertain" is an answer too, since it rests on runs of this very tool
        if level.is_warm and level.key is not None:
            return self.predict_from(level)
        program = main_program(command)
        # of a program without a feature the trees see the command's length and little else, and
        # call all of them fast, as most commands are
        if program is not None and program_classes(program):
            boosted = self._boosted.predict(command)
            if boosted.speed != "uncertain":
                return boosted
        unknown = f"`{program.key}`" if program is not None else "a command that runs nothing"
        return prediction(
            "uncertain",
            self.predict_from(level).distribution,
            fast_ttl_s=0.0,
            source="fallback",
            explanation=(
                f"No layer is sure of {unknown}: it is on no list, was observed fewer than "
                f"{COLD_START} times, and its features do not tell."
            ),
        )


class Level(NamedTuple):
    """The window of one context (`python:-m:pytest`) or tool (`python`); None: of all commands."""

    key: str | None
    window: LogWindow

    @property
    def is_warm(self) -> bool:
        return len(self.window) >= COLD_START

    def __str__(self) -> str:
        return "commands of any kind" if self.key is None else f"`{self.key}`"


class RecentWindows(OrderedDict[str, LogWindow]):
    """At most `limit` windows by key; the one that was not observed for longest is dropped."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def to_observe(self, key: str) -> LogWindow:
        """Return the window of a key, made if missing, and mark it as the latest observed."""
        window = self.setdefault(key, LogWindow())
        self.move_to_end(key)
        if len(self) > self._limit:
            self.popitem(last=False)
        return window

    def state(self) -> dict[str, Any]:
        return {key: window.state() for key, window in self.items()}

    def restore(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise TypeError(f"windows are saved by key, got {state!r:.100}")
        for key, window_state in state.items():
            self.to_observe(key).restore(window_state)


def main_program(command: CommandAnalysis) -> Program | None:
    """Return the first of the programs that decide the rules' verdict; None where nothing runs.

    So `cat x | python train.py` is a python, and `ls && go test` a go.
    """
    _, decisive = command_speed(command)
    return decisive[0] if decisive else None


def command_speed(command: CommandAnalysis) -> tuple[Speed, list[Program]]:
    """Return the lists' verdict on a whole command and the programs that decided it.

    One slow program makes it slow, and it is fast if all are. Programs in the background count only
    if nothing else runs.
    """
    awaited = [program for program in command.programs if not program.is_background]
    by_speed: dict[Speed, list[Program]] = {"slow": [], "uncertain": [], "fast": []}
    for program in awaited or command.programs:
        by_speed[program_speed(program)].append(program)
    for speed, decisive in by_speed.items():
        if decisive:
            return speed, decisive
    return "uncertain", []


def program_speed(program: Program) -> Speed:
    """Return the lists' verdict on one program."""
    name, key, argv = program.name, program.key, program.argv
    if name == "python" and (module := module_argv(name, argv)):
        name, argv = module[0], module
        key = program_key(name, argv)
    if name == "pytest":
        ends_early = _has_option(argv, "x", _PYTEST_VALUES, {"--exitfirst", "--collect-only"})
        return "uncertain" if ends_early else "slow"
    if name == "curl":
        downloads = _has_option(argv, "oO", _CURL_VALUES, {"--output", "--remote-name"})
        return "slow" if downloads else "uncertain"
    if name == "find":
        is_shallow = not {("-maxdepth", "1"), ("-maxdepth", "2")}.isdisjoint(pairwise(argv))
        return "fast" if is_shallow else "uncertain"
    if name in FAST_PROGRAMS or key in FAST_KEYS:
        return "fast"
    return "slow" if name in SLOW_PROGRAMS or key in SLOW_KEYS else "uncertain"


def _has_option(
    argv: tuple[str, ...], letters: str, takes_value: frozenset[str], long_names: set[str]
) -> bool:
    """True if one of the options is given, its letter alone or in a cluster such as -sSLo."""
    clusters = (word[1:] for word in argv[1:] if word[:1] == "-" and word[1:2] != "-")
    options = (takewhile(lambda letter: letter not in takes_value, each) for each in clusters)
    return not long_names.isdisjoint(argv) or any(
        not set(letters).isdisjoint(each) for each in options
    )
