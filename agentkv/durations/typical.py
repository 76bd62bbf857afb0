"""What a command's text says of its duration before its first run.

The seconds of each program are in `agentkv/commands/programs.toml`. In addition: waits, loops,
time-outs, servers, and runs that only answer (`--help`) or plan (`--dry-run`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.programs import (
    LIMITS,
    NESTED,
    TABLES,
    by_name,
    duration_s,
    module_of,
)

MAX_WAIT_S = 3600.0
UNKNOWN_S = 1.0
"""An unlisted program: many are small tools, some run for long."""
_OPEN_WAIT_S, _USUAL_ROUNDS = 5.0, 3
_OVERHEAD_S = 0.08

_BY_KEY, _BY_NAME, _BY_WORD = (
    {name: float(seconds) for name, seconds in by_name(TABLES[table]).items()}
    for table in ("key", "name", "word")
)
_ALIASES = by_name(TABLES["alias"])
_RUNS_TASKS = frozenset(TABLES["words"]["runs_tasks"].split())
_WORD_ENDS = re.compile(r"[:._/-]+")
_SCRIPT = re.compile(r"\./.*|.*\.(?:sh|py|js|rb|ps1)")
_MODES = {
    mode: (seconds, re.compile(pattern)) for mode, (seconds, pattern) in TABLES["unusual"].items()
}
_TESTS = frozenset(TABLES["class_of_name"]["test"].split())
_SELECTS = re.compile(
    r"-k|-run|--filter|--grep|-t|-Dtest.*"
    r"|.*(?:::|_test\.|test_.{0,80}\.py$|\.(?:test|spec)\.|Tests?\.|\.Test).*"
)
"""An argument that selects some of all tests."""


@dataclass(frozen=True, slots=True)
class FirstGuess:
    """What a text says of its duration."""

    seconds: float
    """Until the last awaited program usually ends."""
    main: Program | None
    """The program that usually takes longest."""
    is_wait: bool
    """True if it mostly waits for a time that its text gives."""
    unknown_share: float
    """Share of the time that unknown programs and waits take, 0 to 1."""
    limit_s: float
    """Seconds after which all of it is stopped; infinite if nothing stops it."""


def first_guess(command: CommandAnalysis) -> FirstGuess:
    """Read a command's usual time off its programs."""
    has_jobs = any(each.is_background for each in command.programs)
    has_wait = any(each.name == "wait" for each in command.programs)
    total_s, waits_s, unknown_s, longest_s, main = 0.0, 0.0, 0.0, -1.0, None
    for program in command.programs:
        if program.is_background and not has_wait:
            continue
        once_s, is_known = _once_s(program)
        if program.name == "wait" and not has_jobs:
            once_s, is_known = UNKNOWN_S, False
        is_wait = program.name == "sleep"
        # of a small tool a round is nothing
        rounds = _USUAL_ROUNDS if program.is_repeated and (once_s > _OVERHEAD_S or is_wait) else 1
        seconds = min(rounds * once_s, program.timeout_s or MAX_WAIT_S)
        if not is_known or (program.is_repeated and (once_s >= 1.0 or is_wait)):
            unknown_s += seconds
        elif is_wait:
            waits_s += seconds
        if seconds > longest_s:
            main, longest_s = program, seconds
        total_s += seconds
    whole_s = min(total_s, MAX_WAIT_S) + _OVERHEAD_S
    limit_s = (main and main.timeout_s) or math.inf
    return FirstGuess(
        seconds=whole_s,
        main=main,
        is_wait=waits_s > whole_s / 2,
        unknown_share=min(unknown_s / whole_s, 1.0),
        limit_s=limit_s + total_s - longest_s,
    )


def _once_s(program: Program) -> tuple[float, bool]:
    """Return the seconds of one run, and whether anything is known of them."""
    if program.name == "sleep":
        waits = [duration_s(word) for word in program.argv[1:]]
        known = [wait for wait in waits if wait is not None]
        is_known = 0 < len(waits) == len(known)
        return (min(sum(known), MAX_WAIT_S), True) if is_known else (_OPEN_WAIT_S, False)
    mode, known_s = mode_of(program), _listed_s(module_of(program))
    if mode:
        mode_s, _ = _MODES[mode]
        known_s = mode_s if mode_s > 1.0 else min(known_s or math.inf, mode_s)
    elif known_s is not None and ("test" in program.key or program.name in _TESTS):
        known_s /= 2 if any(map(_SELECTS.fullmatch, program.argv[1:8])) else 1
    if known_s is None:
        return UNKNOWN_S, False
    return min(known_s, _limit_s(program)), True


def _limit_s(program: Program) -> float:
    """Return the seconds of the program's own option that limits its run, infinite without one."""
    options = LIMITS.get(program.key) or LIMITS.get(program.name, ())
    for word, after in pairwise((*program.argv, "")) if options else ():
        name, _, value = word.partition("=")
        if name in options:
            return duration_s(value or after) or math.inf
    return math.inf


def _listed_s(program: Program) -> float | None:
    """Look up the key, then words such as `test` or `install` behind the name, then the name."""
    name, key = _ALIASES.get(program.name, program.name), _aliased_key(program)
    if key in _BY_KEY:
        return _BY_KEY[key]
    rest = key.partition(":")[2]
    verb, _, own = rest.partition(":")
    if own and verb in NESTED.get(program.name, ()):  # the task counts, not the `run` before it
        rest = own
    text = f"{name} {rest}" if _SCRIPT.fullmatch(name) else rest
    words = {*rest.split(":"), *_WORD_ENDS.sub(" ", text).split()}
    if name not in _RUNS_TASKS and not name.endswith((".sh", ".py")):
        words.discard("start")  # of a service manager, which then returns
    by_words_s = [_BY_WORD.get(word, 0.0) for word in words]
    if name in _RUNS_TASKS:  # `yarn jest`
        by_words_s += [_BY_NAME.get(word, 0.0) for word in rest.split(":")]
    by_word_s, by_name_s = max(by_words_s, default=0.0), _BY_NAME.get(name)
    if not by_word_s or by_name_s is None:
        return by_word_s or by_name_s
    return max(by_word_s, by_name_s if by_word_s >= 1.0 else min(by_name_s, 1.0))


def _aliased_key(program: Program) -> str:
    return _ALIASES.get(program.name, program.name) + program.key.removeprefix(program.name)


def mode_of(program: Program) -> str:
    """Return how a run differs from the usual ones of the same program; empty if it does not.

    The usual runs say nothing of such a run, nor it of them.
    """
    text = " ".join((_aliased_key(program), *program.argv[1:]))
    return next((mode for mode, (_, pattern) in _MODES.items() if pattern.search(text)), "")
