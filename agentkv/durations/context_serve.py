"""ContextServe's predictor: its layers, asked in order until one of them decides.

1. rules: lists of fast and slow programs. 2. bayes: posteriors of contexts and tools with enough
runs. 3. boosted: trees over features of the command, where the main program is of a class that they
know. 4. Else uncertain. Source for layers, lists, thresholds: ContextServe. It leaves open when a
layer passes a command on; the conditions under 2 and 3 are ours.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Generic, Literal

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.features import command_features, program_classes
from agentkv.commands.program import module_argv, program_key
from agentkv.durations.posterior import LogStudentT, LogWindow, RecentWindows, W
from agentkv.durations.prediction import (
    ANY_COMMAND,
    FAST_S,
    SLOW_S,
    SURE,
    TTL_SHARE,
    LogNormal,
    Prediction,
    Speed,
    counted,
    prediction,
    summary,
    verdict,
)
from agentkv.durations.trees import TreeEnsemble

FAST_TTL_S = 3.0
FAST_PROGRAMS = frozenset(
    """
    ls cat head tail echo pwd cd which type wc basename dirname readlink stat true false date
    whoami hostname uname env export set unset printf touch mkdir rmdir mv cp rm ln chmod chown
    """.split()  # noqa: SIM905 - the list as published reads best as text
)
FAST_KEYS = frozenset(
    {f"git:{name}" for name in ("status", "log", "diff", "show", "branch", "rev-parse", "remote")}
    | {"python:-c"}
)
SLOW_PROGRAMS = frozenset({"make", "cmake", "mvn", "gradle", "wget"})
SLOW_KEYS = frozenset(
    {"cargo:build", "go:build", "docker:build", "docker:pull", "git:clone"}
    | {f"{name}:install" for name in ("apt", "apt-get", "pip", "npm", "yarn", "conda")}
    | {f"python:{name}.py" for name in ("train", "eval", "benchmark", "setup")}
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


class RulesEstimator:
    """FAST and SLOW by list, UNCERTAIN otherwise; `observe` is a no-op."""

    def predict(self, command: CommandAnalysis) -> Prediction:
        speed, programs = command_speed(command)
        return prediction(
            speed,
            _DISTRIBUTIONS[speed],
            fast_ttl_s=FAST_TTL_S,
            source="rules",
            explanation=_listed(speed, programs),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        if state != {}:
            raise ValueError(f"the rules learn nothing, but got {state!r:.100}")


def command_speed(command: CommandAnalysis) -> tuple[Speed, list[Program]]:
    """The verdict on a whole command and the programs that decided it.

    One slow program makes it slow, and it is fast if all are. Nobody waits for a program in the
    background, unless nothing else runs.
    """
    programs = foreground(command)
    by_speed: dict[Speed, list[Program]] = {"slow": [], "uncertain": [], "fast": []}
    for program in programs:
        by_speed[program_speed(program)].append(program)
    for speed, decisive in by_speed.items():
        if decisive:
            return speed, decisive
    return "uncertain", []


def foreground(command: CommandAnalysis) -> list[Program]:
    """The programs that the shell waits for; all of them if it waits for none."""
    waited_for = [program for program in command.programs if not program.is_background]
    return waited_for or list(command.programs)


def program_speed(program: Program) -> Speed:
    """What the lists say of one program."""
    name, key, argv = program.name, program.key, program.argv
    if name == "python" and (module := module_argv(name, argv)):
        name, argv = module[0], module
        key = program_key(name, argv)
    if name == "pytest":
        is_short = has_option(argv, "x", _PYTEST_VALUES) or not {
            "--exitfirst",
            "--collect-only",
        }.isdisjoint(argv)
        return "uncertain" if is_short else "slow"
    if name == "curl":
        return "slow" if _is_download(argv) else "uncertain"
    if name == "find":
        return "fast" if _is_shallow(argv) else "uncertain"
    if name in FAST_PROGRAMS or key in FAST_KEYS:
        return "fast"
    return "slow" if name in SLOW_PROGRAMS or key in SLOW_KEYS else "uncertain"


def has_option(argv: tuple[str, ...], letter: str, takes_value: frozenset[str]) -> bool:
    """Whether a one-letter option is given, alone or in a cluster such as -sSLo."""
    for word in argv[1:]:
        if word[:1] == "-" and word[1:2] != "-":
            for option in word[1:]:
                if option == letter:
                    return True
                if option in takes_value:
                    break
    return False


def _is_download(argv: tuple[str, ...]) -> bool:
    return (
        has_option(argv, "o", _CURL_VALUES)
        or has_option(argv, "O", _CURL_VALUES)
        or not {"--output", "--remote-name"}.isdisjoint(argv)
    )


def _is_shallow(argv: tuple[str, ...]) -> bool:
    return any(option == "-maxdepth" and depth in ("1", "2") for option, depth in pairwise(argv))


def _listed(speed: Speed, programs: list[Program]) -> str:
    names = ", ".join(dict.fromkeys(program.key for program in programs[:_MAX_NAMED])) or "nothing"
    if speed == "uncertain":
        return f"Neither the list of fast nor that of slow programs has {names}."
    if speed == "slow":
        return f"The list of slow programs has {names}."
    return f"The list of fast programs has all that runs: {names}."


COLD_START = 5
"""Observations from which on a level is used."""
MAX_CONTEXTS = 256
MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Level(Generic[W]):
    """One window and the context or tool that it covers; `key` is None for that of all commands."""

    key: str | None
    window: W

    @property
    def is_warm(self) -> bool:
        return len(self.window) >= COLD_START

    def __str__(self) -> str:
        return "commands of any kind" if self.key is None else f"`{self.key}`"

    def why_cold(self) -> str:
        """A sentence on a level without enough observations."""
        return f"Only {counted(len(self.window), 'run')} of {self} so far, too few to judge by."


class Levels(Generic[W]):
    """At most MAX_CONTEXTS windows by context, MAX_TOOLS by tool, and one of all commands."""

    def __init__(self, new_window: Callable[[], W]) -> None:
        self._contexts = RecentWindows(new_window, MAX_CONTEXTS)
        self._tools = RecentWindows(new_window, MAX_TOOLS)
        self._all: Level[W] = Level(None, new_window())

    def best(self, command: CommandAnalysis) -> Level[W]:
        """The most specific level past its cold start; that of all commands if there is none."""
        program = main_program(command)
        if program is None:
            return self._all
        for key, windows in ((program.key, self._contexts), (program.name, self._tools)):
            window = windows.get(key)
            if window is not None and len(window) >= COLD_START:
                return Level(key, window)
        return self._all

    def to_observe(self, command: CommandAnalysis) -> Iterator[W]:
        """The windows that a run of this command belongs to, made where they are missing."""
        program = main_program(command)
        if program is not None:
            yield self._contexts.to_observe(program.key)
            yield self._tools.to_observe(program.name)
        yield self._all.window

    def state(self) -> dict[str, Any]:
        return {
            "contexts": self._contexts.state(),
            "tools": self._tools.state(),
            "all": self._all.window.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError where the data does not fit."""
        self._contexts.restore(state["contexts"])
        self._tools.restore(state["tools"])
        self._all.window.restore(state["all"])


def main_program(command: CommandAnalysis) -> Program | None:
    """The first of the programs that decide the rules' verdict; None where nothing runs.

    So `cat x | python train.py` is a python, and `ls && go test` a go.
    """
    _, decisive = command_speed(command)
    return decisive[0] if decisive else None


TTLRule = Literal["quantile", "thompson", "upper"]
UPPER_SHARE = 0.95

_MIN_DURATION_S = 1e-3


class BayesEstimator:
    """The posterior of the most specific level with enough observations.

    `ttl_rule` gives the TTL of a fast command: "quantile", the 0.9 quantile of the next run;
    "thompson", that quantile under a mean and variance drawn from the posterior (the draw depends
    on `seed` and on what was observed, not on how often one asks); "upper", the 0.95 quantile.
    """

    def __init__(self, *, seed: int = 0, ttl_rule: TTLRule = "quantile") -> None:
        self._levels = Levels(LogWindow)
        self._num_observed = 0
        self._seed = seed
        self._ttl_rule = ttl_rule

    def predict(self, command: CommandAnalysis) -> Prediction:
        return self.predict_from(self._levels.best(command))

    def best_level(self, command: CommandAnalysis) -> Level[LogWindow]:
        """The level that a prediction for this command rests on."""
        return self._levels.best(command)

    def predict_from(self, level: Level[LogWindow]) -> Prediction:
        """The prediction of one level; uncertain while that is cold."""
        distribution = level.window.posterior().predictive()
        speed = verdict(distribution) if level.is_warm else "uncertain"
        return prediction(
            speed,
            distribution,
            fast_ttl_s=self._ttl_s(level, distribution) if speed == "fast" else 0.0,
            source="bayes",
            explanation=_explanation(level, distribution),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        """A censored duration is imputed under what was known of the command before it."""
        mean, variance = math.log(max(duration_s, _MIN_DURATION_S)), 0.0
        if censored:
            mean, variance = self._levels.best(command).window.posterior().beyond(mean)
        for window in self._levels.to_observe(command):
            window.add(mean, variance)
        self._num_observed += 1

    def state(self) -> dict[str, Any]:
        return {"num_observed": self._num_observed, **self._levels.state()}

    def restore(self, state: dict[str, Any]) -> None:
        if not isinstance(state["num_observed"], int):
            raise TypeError(f"not a number of observations: {state['num_observed']!r:.100}")
        self._levels.restore(state)
        self._num_observed = state["num_observed"]

    def _ttl_s(self, level: Level[LogWindow], distribution: LogStudentT) -> float:
        if self._ttl_rule == "thompson":
            chance = random.Random(f"{self._seed}/{self._num_observed}/{level.key}")
            return level.window.posterior().sampled_quantile_s(TTL_SHARE, chance)
        return distribution.quantile_s(UPPER_SHARE if self._ttl_rule == "upper" else TTL_SHARE)


def _explanation(level: Level[LogWindow], distribution: LogStudentT) -> str:
    if not level.is_warm:
        return level.why_cold()
    return f"Posterior after {len(level.window)} runs of {level}: {summary(distribution)}"


SLOW_OVER = 0.8
FAST_UNDER = 0.2
SPREAD_LN = 0.9
"""The likeliest on the later part of the training data, with trees from the earlier part."""

_LOG_ODDS_LIMIT = 7.0
_STANDARD = NormalDist()


class BoostedEstimator:
    """Slow where the trees say so with a probability over 0.8, fast under 0.2; learns nothing.

    The trees give the probability of more than 5 s only. The distribution around it is log-normal
    with one spread for all commands, SPREAD_LN, and the mean at which that probability holds; a
    fast command's TTL is its 0.9 quantile.
    """

    def __init__(self, trees: TreeEnsemble) -> None:
        self._trees = trees

    def predict(self, command: CommandAnalysis) -> Prediction:
        p_slow = self._p_slow(command)
        distribution = LogNormal(
            math.log(SLOW_S) + SPREAD_LN * _STANDARD.inv_cdf(p_slow), SPREAD_LN
        )
        return prediction(
            _speed(p_slow),
            distribution,
            fast_ttl_s=distribution.quantile_s(TTL_SHARE),
            source="boosted",
            explanation=(
                f"By its features alone (programs' classes, flags, pipes, length) "
                f"{p_slow:.0%} of such commands take over {SLOW_S:g} s."
            ),
        )

    def observe(self, command: CommandAnalysis, duration_s: float, *, censored: bool) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"the boosted trees learn nothing online, but got {state!r:.100}")

    def _p_slow(self, command: CommandAnalysis) -> float:
        log_odds = self._trees.raw_score(command_features(command))
        return 1.0 / (1.0 + math.exp(-max(-_LOG_ODDS_LIMIT, min(log_odds, _LOG_ODDS_LIMIT))))


def _speed(p_slow: float) -> Speed:
    if p_slow > SLOW_OVER:
        return "slow"
    return "fast" if p_slow < FAST_UNDER else "uncertain"


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
