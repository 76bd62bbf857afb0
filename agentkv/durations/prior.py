"""What a command's text says of its duration: when its programs end, and features for the trees.

`prior_input` is called by the default predictor once per new text. Knows nothing of what was
observed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.program import INTERPRETERS, word_set
from agentkv.durations.typical import ENDLESS_S, IMPORT_S, UNKNOWN_S, mode_of, typical_s

LASTING_S = 1.0
SHORT_S = 0.02
_SHORT_ROUND_S = 0.002
"""A further round of a builtin or a small tool."""
_START_S = 0.1
"""Most of a run no longer than this happens once: its start, and the trip to the shell."""
_UNKNOWN_ROUNDS, _POLL_ROUNDS = 3, 5
"""A loop that sleeps between its rounds waits for something that takes a while."""
_UNKNOWN_WAIT_S = 5.0
"""Default for a wait of unknown length: most are 1 to 60 s."""

FEATURES = (
    *("num_lasting_programs", "num_sequences", "has_loop", "ln_loop_count", "is_whole_project"),
    *("is_selection", "is_question", "is_repeated_or_raced", "is_recursive", "ends_in_head"),
    *("ln_wait", "ln_timeout", "has_background", "ln_inline_chars"),
)
"""The shape of a command. The programs themselves count by `typical_s` alone, since what trees
learn of the programs of one project misleads in the next (measured: leave one family out)."""
_NUM_LASTING, _IS_WHOLE = map(FEATURES.index, ("num_lasting_programs", "is_whole_project"))

# Features from "is_whole_project" on, each searched once in the words of the main program, one a
# line.
_PATTERNS = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:\./\.\.\.|\.\.\.|\.|/|--all|-A|--workspace|--all-targets|~|\$HOME)$|/\.\.\.$",
        r"^(?:-run|-k|--filter|--grep|-t|--testNamePattern|--test|--lib|--only|-bench|--tests"
        r"|-Dtest)(?:=|$)|::|_test\.|test_[^\n]{0,80}\.py$|\.(?:test|spec)\.[jt]sx?$|_spec\.rb$"
        r"|Tests?\.(?:cs|java|kt|php|swift)$"
        # of Python's unittest and of Django: `tests.test_x.TestY`
        r"|^(?:\w{1,60}\.){1,8}(?:tests?|test_\w{1,60}|Test\w{1,60})(?:\.\w{1,60}){0,4}$",
        r"^(?:--help|-h|help|--version|-V|version|--dry-run|--collect-only|--co|--list|-list"
        r"|--check|-n)$",
        r"^(?:-race|-bench|--runs|--repeat|-count)(?:=|$)",
        r"^(?:-[a-zA-Z]{0,20}[rR][a-zA-Z]{0,20}|--recursive)$",
    )
]
_OTHER_LETTERS = frozenset({"-k", "-t"})
"""They select tests, but name a tag, a file or a key of a program that runs none."""
_NO_TESTS = word_set(
    "curl docker kubectl make ninja nerdctl podman ssh tmux wait-for-it wait-for-it.sh wait-on"
)
_INLINE_WAIT = re.compile(r"\bsleep['\", (]{1,4}([0-9]{1,6}(?:\.[0-9]{1,6})?)\b")
_MAX_FLAG_CHARS = 600
_NO_TIMEOUT_S = 3600.0
_IMPORT = re.compile(r"\b(?:import|from) ([a-z_]{1,30})")


class PriorInput(NamedTuple):
    """What the prior of a command is computed from."""

    typical_s: float
    """Seconds until the last awaited program usually ends."""
    wait_s: float
    """The part of it that the text itself gives; 0 if a wait has no known end."""
    timeout_s: float | None
    """Seconds after which the whole is stopped."""
    main: Program | None
    """The program that usually takes longest."""
    repeats: float
    """Duration of all runs of `main` as a multiple of one run."""
    is_known: bool
    """True if something is known of every program and of every wait."""
    is_mostly_known: bool
    """True if known programs take most of the time."""
    features: list[float]
    """The values of FEATURES, in that order."""
    parts: list[tuple[float, list[float]]]
    """Usual time and features of parts of it, none of which takes longer than the whole."""

    @property
    def is_a_wait(self) -> bool:
        """True if it mostly waits for a time that its text gives."""
        return self.wait_s > self.typical_s / 2


def prior_input(command: CommandAnalysis) -> PriorInput:
    """Read off a command everything the prior needs."""
    times = timed(command)
    programs = [each.program for each in times]
    main, main_s = None, 0.0
    if times:  # of equals a usual run, not the plan of it
        longest = max(times, key=lambda each: (each.seconds, not mode_of(each.program)))
        main, main_s = longest.program, longest.seconds
    last = programs[-1] if programs else None
    inline_s = _inline_waits_s(programs)
    waits_s = inline_s + sleeps_s(times)
    has_known_waits = not any(each.is_open for each in times)
    unknown_s = sum(each.seconds for each in times if not each.is_known)
    whole_s = end_s(times) + inline_s + _imports_s(programs) + SHORT_S
    features = [
        float(sum(each.seconds >= LASTING_S and not each.program.is_runner for each in times)),
        float(command.num_sequences),
        float(command.has_loop),
        math.log(command.loop_count or 1),
        *_flags_of(main),
        float(last is not None and last.is_piped and last.name == "head"),
        math.log(waits_s + SHORT_S),
        math.log((main and main.timeout_s) or _NO_TIMEOUT_S),
        float(len(programs) < len(command.programs)),
        math.log((len(main.code) + len(main.stdin) if main else 0) + 1),
    ]
    return PriorInput(
        typical_s=whole_s,
        wait_s=waits_s if has_known_waits else 0.0,
        timeout_s=limit_s(times, main),
        main=main,
        repeats=repeats(times, main) if main else 1.0,
        is_known=has_known_waits and all(each.is_known for each in times),
        is_mostly_known=unknown_s <= whole_s / 2,
        features=features,
        parts=list(_parts(whole_s, main_s, features)),
    )


def _parts(
    whole_s: float, main_s: float, features: list[float]
) -> Iterator[tuple[float, list[float]]]:
    """Yield a part of the whole project, and the longest of several programs that last."""
    if features[_IS_WHOLE]:
        features = [*features[:_IS_WHOLE], 0.0, *features[_IS_WHOLE + 1 :]]
        yield whole_s, features
    if features[_NUM_LASTING] > 1:
        yield main_s + SHORT_S, [*features[:_NUM_LASTING], 1.0, *features[_NUM_LASTING + 1 :]]


def _flags_of(main: Program | None) -> list[float]:
    words = main.argv[1:] if main else ()
    if main and main.name in _NO_TESTS:
        words = tuple(word for word in words if word not in _OTHER_LETTERS)
    lines = "\n".join(words)[:_MAX_FLAG_CHARS]
    return [0.0 if pattern.search(lines) is None else 1.0 for pattern in _PATTERNS]


def _inline_waits_s(programs: Sequence[Program]) -> float:
    """Sum the waits of inline code: `python -c 'time.sleep(5)'`, or in a here-document."""
    seconds = 0.0
    for program in programs:
        for code in _codes_of(program):
            if "sleep" in code:
                seconds += sum(map(float, _INLINE_WAIT.findall(code)[:8]))
    return min(seconds, _NO_TIMEOUT_S)


def _imports_s(programs: Sequence[Program]) -> float:
    """Return the seconds that the slowest import of inline Python usually takes."""
    codes = (code for p in programs if p.name == "python" for code in _codes_of(p))
    packages = (package for code in codes for package in _IMPORT.findall(code)[:16])
    return max((IMPORT_S.get(package, 0.0) for package in packages), default=0.0)


def _codes_of(program: Program) -> Sequence[str]:
    """Return the code in the text that an interpreter runs, as far as it was read."""
    return (program.code, program.stdin) if program.name in INTERPRETERS else ()


class Timed(NamedTuple):
    """A program that the shell waits for, and its usual duration."""

    program: Program
    seconds: float
    """Over all its rounds, at most its time-out."""
    once_s: float
    """In a single round."""
    is_known: bool
    """True if anything is known of it before its first run."""

    @property
    def is_sleep(self) -> bool:
        return self.program.name == "sleep"

    @property
    def is_open(self) -> bool:
        """True for a loop that sleeps between its rounds: it polls, for an unknown time."""
        return self.is_sleep and self.program.rounds is None


def timed(command: CommandAnalysis) -> list[Timed]:
    """Return the programs that the shell waits for, with their usual durations."""
    programs = [program for program in command.programs if not program.is_background]
    has_jobs = any(program.job is not None for program in command.programs)
    times = []
    for program, after in pairwise((*programs, None)):
        assert program is not None
        once_s = typical_s(program)
        if program.name == "wait" and not has_jobs:
            once_s = None  # it awaits a job of an earlier command
        elif program.is_endless or (program.name == "yes" and not (after and after.is_piped)):
            once_s = ENDLESS_S
        times.append(_timed(program, once_s))
    return times


def _timed(program: Program, known_s: float | None) -> Timed:
    once_s = known_s
    if once_s is None:
        once_s = _UNKNOWN_WAIT_S if program.name == "sleep" else UNKNOWN_S
    unknown = _POLL_ROUNDS if program.name == "sleep" else _UNKNOWN_ROUNDS
    rounds = unknown if program.rounds is None else program.rounds
    is_short = once_s <= SHORT_S and program.name != "sleep"
    further_s = _SHORT_ROUND_S if is_short else once_s
    seconds = once_s * min(rounds, 1) + further_s * max(rounds - 1, 0)
    if program.is_endless:
        seconds = once_s
    if program.timeout_s is not None:
        seconds, once_s = min(seconds, program.timeout_s), min(once_s, program.timeout_s)
    return Timed(program, seconds, once_s, known_s is not None)


def end_s(times: Sequence[Timed]) -> float:
    """Return when the last of them ends; a background job runs alongside what follows it."""
    now_s = 0.0
    ends_s: dict[int, float] = {}
    for each in times:
        job = each.program.job
        if job is None:
            now_s += each.seconds
        else:
            ends_s[job] = ends_s.get(job, now_s) + each.seconds
    return max(now_s, *ends_s.values(), 0.0)


def repeats(times: Sequence[Timed], main: Program) -> float:
    """Return the duration of all runs of `main`'s program as a multiple of one run, at least 1.

    It is 1 for a small tool, since nearly all of its time is the start. The text does not say how
    often a loop runs that is left early, nor which of two alternatives: these count as one run.
    """
    own = [
        each._replace(seconds=each.once_s) if each.program.rounds is None else each
        for each in times
        if each.program is main or _is_another_run(each.program, main)
    ]
    once_s = next(each.once_s for each in own if each.program is main)
    return max(1.0, end_s(own) / once_s) if once_s > _START_S else 1.0


def _is_another_run(program: Program, main: Program) -> bool:
    if program.key != main.key or program.is_piped or program.is_alternative:
        return False
    return mode_of(program) == mode_of(main)


def sleeps_s(times: Sequence[Timed]) -> float:
    """Return how long it sleeps for times that the text gives."""
    return end_s([each for each in times if each.is_sleep and each.is_known])


def limit_s(times: Sequence[Timed], main: Program | None) -> float | None:
    """Return the main program's time-out plus the time of programs outside it.

    None if there is no time-out, or something outside it may last.
    """
    if main is None or main.timeout_s is None:
        return None
    outside = [each for each in times if each.program.timeout_s != main.timeout_s]
    if any(each.seconds >= LASTING_S and not each.is_sleep for each in outside):
        return None
    return main.timeout_s + sum(each.seconds for each in outside)
