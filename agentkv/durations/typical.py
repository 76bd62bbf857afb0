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
    FOLLOWS,
    INTERPRETERS,
    LIMITS,
    NESTED,
    TABLES,
    by_name,
    duration_s,
    module_of,
)

ENDLESS_S = 60.0
"""A server, a watcher or a `tail -f` runs until it is stopped, mostly by the call's time-out."""
MAX_WAIT_S = 3600.0
UNKNOWN_S = 1.0
"""An unlisted program: many are small tools, some run for long."""
_QUESTION_S, _PLAN_S, _DETACH_S, _STATE_S, _OPEN_WAIT_S = 0.2, 1.0, 1.0, 30.0, 5.0
_UNKNOWN_ROUNDS = 3
_FURTHER_ROUND_S = 0.002
"""A further round of a small tool."""
_OVERHEAD_S = 0.08

_BY_KEY, _BY_NAME, _BY_WORD = (
    {name: float(seconds) for name, seconds in by_name(TABLES[table]).items()}
    for table in ("key", "name", "word")
)
_ALIASES = by_name(TABLES["alias"])
_RUNS_TASKS = frozenset(TABLES["words"]["runs_tasks"].split())
_WORD_ENDS = re.compile(r"[:._/-]+")
_SCRIPT = re.compile(r"\./.*|.*\.(?:sh|py|js|rb|ps1)")
_QUESTION = re.compile(r"--?help|--?version|-V|-h")
_PLAN = re.compile(r"--(?:dry-?run(?!=none)|collect-only|co$|list-?tests|plan|just-print).*")
_DETACHED = re.compile(r"--(?:daemon(?:ize)?|detach|fork|background)(?:=yes|=true)?")
_WATCH = re.compile(r"--watch(?:-?all)?(?:=true)?", re.IGNORECASE)
_SELECTS = re.compile(
    r"-k|-run|--filter|--grep|-t|-Dtest.*|.*(?:::|_test\.|test_.{0,80}\.py$|\.(?:test|spec)\.|Tests?\.|\.Test).*"
)
_TESTS = frozenset(TABLES["class_of_name"]["test"].split())
_INLINE_WAIT = re.compile(r"\bsleep['\", (]{1,4}([0-9]{1,6}(?:\.[0-9]{1,6})?)\b")


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
    repeats: float
    """Duration of all runs of `main` as a multiple of one."""


def first_guess(command: CommandAnalysis) -> FirstGuess:
    """Read a command's usual time off its programs."""
    has_wait = any(each.name == "wait" for each in command.programs)
    now_s, jobs_s, waits_s, unknown_s, longest_s = 0.0, 0.0, 0.0, 0.0, -1.0
    main, repeats = None, 1.0
    for program in command.programs:
        if program.is_background and not has_wait:
            continue
        once_s, is_known = _once_s(program)
        if program.name == "wait" and not any(p.is_background for p in command.programs):
            once_s, is_known = UNKNOWN_S, False
        seconds = _all_rounds_s(program, once_s)
        is_open = program.rounds is None and (
            once_s >= 1.0 or program.name == "sleep"
        )  # of an unknown number of rounds
        unknown_s += seconds if is_open or not is_known else 0.0
        waits_s += seconds if program.name == "sleep" and is_known else 0.0
        code = program.code if program.name in INTERPRETERS else ""
        inline_s = sum(map(float, _INLINE_WAIT.findall(code)[:8]))
        waits_s, seconds = waits_s + inline_s, seconds + inline_s
        if seconds > longest_s:
            main, longest_s = program, seconds
            has_known_rounds = program.rounds not in (None, math.inf) and once_s > _OVERHEAD_S
            repeats = max(seconds / once_s, 1.0) if has_known_rounds else 1.0
        if program.is_background:
            jobs_s = max(jobs_s, seconds)
        else:
            now_s += seconds
    whole_s = min(max(now_s, jobs_s), MAX_WAIT_S) + _OVERHEAD_S
    limit_s = (main and main.timeout_s) or math.inf
    return FirstGuess(
        seconds=whole_s,
        main=main,
        is_wait=waits_s > whole_s / 2,
        unknown_share=min(unknown_s / whole_s, 1.0),
        limit_s=limit_s + max(now_s - longest_s, 0.0),
        repeats=repeats,
    )


def _all_rounds_s(program: Program, once_s: float) -> float:
    rounds = _UNKNOWN_ROUNDS if program.rounds is None else program.rounds
    if rounds == math.inf:
        seconds = ENDLESS_S
    elif once_s <= _OVERHEAD_S and program.name != "sleep":
        seconds = once_s + min(_FURTHER_ROUND_S * max(rounds - 1, 0), ENDLESS_S)
    else:
        seconds = once_s * rounds
    return min(seconds, program.timeout_s or MAX_WAIT_S)


def _once_s(program: Program) -> tuple[float, bool]:
    """Return the seconds of one run, and whether anything is known of them."""
    mode = mode_of(program)
    if mode in _MODE_S:
        known_s = _listed_s(module_of(program)) or _MODE_S[mode]
        return _MODE_S[mode] if mode == "endless" else min(known_s, _MODE_S[mode]), True
    if program.name == "sleep":
        waits = [duration_s(word) for word in program.argv[1:]]
        if not waits or None in waits:
            return _OPEN_WAIT_S, False
        return min(sum(wait or 0.0 for wait in waits), MAX_WAIT_S), True
    if (not program.has_input and program.argv in (("cat",), ("tee",))) or program.name == "read":
        return (_OVERHEAD_S, True) if program.has_input else (UNKNOWN_S, False)
    if mode == "state":
        return min(_STATE_S, _limit_s(program) or _STATE_S), True
    seconds = _listed_s(module_of(program))
    if seconds is None:
        return UNKNOWN_S, False
    if "test" in f"{program.key}{program.name}" or program.name in _TESTS:
        seconds /= 2 if any(map(_SELECTS.fullmatch, program.argv[1:8])) else 1
    return min(seconds, _limit_s(program) or seconds), True


def _limit_s(program: Program) -> float | None:
    """Return the seconds of the program's own option that limits its run."""
    options = LIMITS.get(program.key) or LIMITS.get(program.name, ())
    for word, after in pairwise((*program.argv, "")) if options else ():
        name, _, value = word.partition("=")
        if name in options:
            return duration_s(value or after)
    return None


def _listed_s(program: Program) -> float | None:
    """Look up the key, then words such as `test` or `install` behind the name, then the name."""
    name = _ALIASES.get(program.name, program.name)
    key = _aliased_key(program)
    known_s = _BY_KEY.get(key)
    if known_s is not None:
        return known_s
    rest = key.partition(":")[2]
    verb, _, own = rest.partition(":")
    if own and verb in NESTED.get(program.name, ()):  # the task counts, not the `run` before it
        rest = own
    by_name_s = _BY_NAME.get(name)
    text = f"{name} {rest}" if _SCRIPT.fullmatch(name) else rest
    words = (*rest.split(":"), *_WORD_ENDS.sub(" ", text).split())
    own_task = name in _RUNS_TASKS or name.endswith((".sh", ".py"))
    by_words_s = [_BY_WORD.get(word, 0.0) for word in words if own_task or word != "start"]
    if name in _RUNS_TASKS:  # `yarn jest`
        by_words_s += [_BY_NAME.get(word, 0.0) for word in rest.split(":")]
    by_word_s = max(by_words_s, default=0.0)
    if not by_word_s or by_name_s is None:
        return by_word_s or by_name_s
    return max(by_word_s, by_name_s if by_word_s >= 1.0 else min(by_name_s, 1.0))


def _aliased_key(program: Program) -> str:
    return _ALIASES.get(program.name, program.name) + program.key.removeprefix(program.name)


def mode_of(program: Program) -> str:
    """Return how a run differs from the usual ones of the same program; empty if it does not.

    The usual runs say nothing of such a run, nor it of them.
    """
    words = program.argv[1:]
    options = [word for word in words if word[:1] == "-"]
    if (len(words) == 1 and _QUESTION.fullmatch(words[0])) or "--help" in words[-1:]:
        return "question"
    if "--version" in words[-1:] or words[:1] in (("help",), ("version",)):
        return "question"
    if any(_DETACHED.fullmatch(word) for word in options) or (
        _aliased_key(program) in ("docker:run", "docker:compose:up") and "-d" in options
    ):
        return "detached"
    follows = FOLLOWS.get(program.key) or FOLLOWS.get(program.name)
    if _aliased_key(program) == "docker:compose:up":
        return "endless"
    if program.rounds == math.inf or any(_WATCH.fullmatch(word) for word in options):
        return "endless"
    if follows and any(set(follows[0]) & set(word[1:]) for word in options if word[1:2] != "-"):
        return "endless"
    if ("wait" in words[:3] and program.name in _WAITERS) or (
        program.key == "kubectl:rollout" and "status" in words
    ):
        return "state"
    is_plan = program.name == "make" and "-n" in options
    return "plan" if is_plan or any(_PLAN.fullmatch(word) for word in options) else ""


_MODE_S = {"question": _QUESTION_S, "plan": _PLAN_S, "detached": _DETACH_S, "endless": ENDLESS_S}
_WAITERS = frozenset(TABLES["words"]["waiters"].split())
