"""ContextServe's first layer: lists of programs that are known to be fast or slow.

It learns nothing. Source for the lists and the 3 s: ContextServe; it matches the command's text,
here the analysed programs are matched, so `cd /testbed && python -m pytest -q` is a pytest.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.program import module_argv, program_key
from agentkv.durations.log_normal import ANY_COMMAND, LogNormal
from agentkv.durations.prediction import FAST_S, SLOW_S, SURE, Prediction, Speed
from agentkv.durations.verdicts import prediction

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
            explanation=_explanation(speed, programs),
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


def _explanation(speed: Speed, programs: list[Program]) -> str:
    names = ", ".join(dict.fromkeys(program.key for program in programs[:_MAX_NAMED])) or "nothing"
    if speed == "uncertain":
        return f"Neither the list of fast nor that of slow programs has {names}."
    if speed == "slow":
        return f"The list of slow programs has {names}."
    return f"The list of fast programs has all that runs: {names}."
