"""What a command's text tells of its duration: its timeline, and the features of the trained trees.

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
from agentkv.commands.program import INTERPRETERS
from agentkv.durations.typical import ENDLESS_S, UNKNOWN_S, mode_of, typical_s

LASTING_S = 1.0
SHORT_S = 0.02
_SHORT_ROUND_S = 0.002
"""A further round of what takes no time worth telling: a builtin, a small tool."""
_START_S = 0.1
"""Of a run no longer than this most is what comes once: its start, and the trip to the shell."""
_UNKNOWN_ROUNDS = 3
_UNKNOWN_WAIT_S = 5.0
"""Who waits at all mostly waits for 1 to 60 s."""


class Timed(NamedTuple):
    """A program that the shell waits for."""

    program: Program
    seconds: float
    """Over all its rounds, at most its time-out."""
    once_s: float
    """In a single round."""
    is_known: bool
    """Whether anything is known of it beforehand."""

    @property
    def is_sleep(self) -> bool:
        return self.program.name == "sleep"

    @property
    def is_open(self) -> bool:
        """A loop that sleeps between its rounds waits for something: who knows for how long."""
        return self.is_sleep and self.program.rounds is None


def timed(command: CommandAnalysis) -> list[Timed]:
    """The programs that the shell waits for, with what they usually take."""
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


def end_s(times: Sequence[Timed]) -> float:
    """When the last of them ends; a background job runs beside what follows it."""
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
    """How many times as long as one run of `main` all runs of its program take, at least 1.

    1 of what takes no time worth telling: its runs are as good as one. What the text does not say
    is not guessed at: how often a loop runs that is left, and which of two alternatives.
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
    """The part of it that is slept as long as the text says."""
    return end_s([each for each in times if each.is_sleep and each.is_known])


def limit_s(times: Sequence[Timed], main: Program | None) -> float | None:
    """The main program's time-out and the time of what that does not limit, if that is sure."""
    if main is None or main.timeout_s is None:
        return None
    beside = [each for each in times if each.program.timeout_s != main.timeout_s]
    if any(each.seconds >= LASTING_S and not each.is_sleep for each in beside):
        return None
    return main.timeout_s + sum(each.seconds for each in beside)


def _timed(program: Program, once_s: float | None) -> Timed:
    is_known = once_s is not None
    if once_s is None:
        once_s = _UNKNOWN_WAIT_S if program.name == "sleep" else UNKNOWN_S
    rounds = _UNKNOWN_ROUNDS if program.rounds is None else program.rounds
    is_short = once_s <= SHORT_S and program.name != "sleep"
    further_s = _SHORT_ROUND_S if is_short else once_s
    seconds = once_s * min(rounds, 1) + further_s * max(rounds - 1, 0)
    if program.is_endless:
        seconds = once_s
    if program.timeout_s is not None:
        seconds, once_s = min(seconds, program.timeout_s), min(once_s, program.timeout_s)
    return Timed(program, seconds, once_s, is_known)


FEATURES = (
    "num_lasting_programs",
    "num_sequences",
    "has_loop",
    "ln_loop_count",
    "is_whole_project",
    "is_selection",
    "is_question",
    "is_repeated_or_raced",
    "is_recursive",
    "ends_in_head",
    "ln_wait",
    "ln_timeout",
    "has_background",
    "ln_inline_chars",
)
"""The shape of a command; the programs themselves count by `typical_s` alone, since what trees
learn of the programs of one project misleads in the next (measured: leave one family out)."""
_NUM_LASTING, _IS_WHOLE = map(FEATURES.index, ("num_lasting_programs", "is_whole_project"))

# Each searched once in the words of the main program, one a line.
_WHOLE = re.compile(
    r"^(?:\./\.\.\.|\.\.\.|\.|/|--all|-A|--workspace|--all-targets|~|\$HOME)$|/\.\.\.$",
    re.MULTILINE,
)
_SELECTION = re.compile(
    r"^(?:-run|-k|--filter|--grep|-t|--testNamePattern|--test|--lib|--only|-bench|--tests|-Dtest)"
    r"(?:=|$)|::|_test\.|test_[^\n]{0,80}\.py$|\.(?:test|spec)\.[jt]sx?$|_spec\.rb$"
    r"|Tests?\.(?:cs|java|kt|php|swift)$"
    # of Python's unittest and of Django: `tests.test_x.TestY`
    r"|^(?:\w{1,60}\.){1,8}(?:tests?|test_\w{1,60}|Test\w{1,60})(?:\.\w{1,60}){0,4}$",
    re.MULTILINE,
)
_OTHER_LETTERS = frozenset({"-k", "-t"})
"""They name a tag, a file or a key where the program runs no tests."""
_NO_TESTS = frozenset(
    {"curl", "docker", "kubectl", "make", "ninja", "nerdctl", "podman", "ssh", "tmux", "wait-on"}
)
_QUESTION = re.compile(
    r"^(?:--help|-h|help|--version|-V|version|--dry-run|--collect-only|--co|--list|-list|--check|-n)$",
    re.MULTILINE,
)
_REPEATED = re.compile(r"^(?:-race|-bench|--runs|--repeat|-count)(?:=|$)", re.MULTILINE)
_RECURSIVE = re.compile(r"^(?:-[a-zA-Z]{0,20}[rR][a-zA-Z]{0,20}|--recursive)$", re.MULTILINE)
_PATTERNS = (_WHOLE, _SELECTION, _QUESTION, _REPEATED, _RECURSIVE)
_INLINE_WAIT = re.compile(r"\bsleep['\", (]{1,4}([0-9]{1,6}(?:\.[0-9]{1,6})?)\b")
_MAX_FLAG_CHARS = 600
_NO_TIMEOUT_S = 3600.0
_IMPORT = re.compile(r"\b(?:import|from) ([a-z_]{1,30})")
_IMPORT_S = {
    "numpy": 0.2,
    "pandas": 0.5,
    "scipy": 0.5,
    "matplotlib": 0.5,
    "sklearn": 1.0,
    "jax": 2.0,
    "torch": 2.0,
    "transformers": 5.0,
    "tensorflow": 5.0,
    "vllm": 10.0,
}
"""Seconds from a warm cache, judgements in 1-2-5 steps like those of `typical.toml`."""


class PriorInput(NamedTuple):
    """What the prior is computed from; `typical_s` is when the last awaited program ends."""

    typical_s: float
    wait_s: float
    """The part of it that the text itself says."""
    timeout_s: float | None
    """What limits the whole."""
    main: Program | None
    """The program that usually takes longest."""
    repeats: float
    """How many times as long as one run of it all its runs take."""
    is_known: bool
    """Whether something is known of every program and of every wait."""
    is_mostly_known: bool
    """Whether the programs of which something is known take most of the time."""
    features: list[float]
    """The values of FEATURES, in that order."""
    parts: list[tuple[float, list[float]]]
    """The usual time and the features of parts of it, none of which takes longer than the whole."""


def prior_input(command: CommandAnalysis) -> PriorInput:
    times = timed(command)
    programs = [each.program for each in times]
    main, main_s = None, 0.0
    if times:  # of equals a usual run, not the plan of it
        longest = max(times, key=lambda each: (each.seconds, not mode_of(each.program)))
        main, main_s = longest.program, longest.seconds
    words = main.argv[1:] if main is not None else ()
    last = programs[-1] if programs else None
    inline_s = _inline_waits_s(programs)
    waits_s = inline_s + sleeps_s(times)
    is_told = not any(each.is_open for each in times)
    unknown_s = sum(each.seconds for each in times if not each.is_known)
    typical_s = end_s(times) + inline_s + _imports_s(programs) + SHORT_S
    features = [
        float(sum(each.seconds >= LASTING_S and not each.program.is_runner for each in times)),
        float(command.num_sequences),
        float(command.has_loop),
        math.log(command.loop_count or 1),
        *_flags_of(words if main is None or main.name not in _NO_TESTS else _untested(words)),
        float(last is not None and last.is_piped and last.name == "head"),
        math.log(waits_s + SHORT_S),
        math.log((main and main.timeout_s) or _NO_TIMEOUT_S),
        float(len(programs) < len(command.programs)),
        math.log(_inline_chars(main) + 1),
    ]
    return PriorInput(
        typical_s,
        waits_s if is_told else 0.0,
        limit_s(times, main),
        main,
        1.0 if main is None else repeats(times, main),
        is_told and all(each.is_known for each in times),
        unknown_s <= typical_s / 2,
        features,
        list(_parts(typical_s, main_s, features)),
    )


def _parts(
    typical_s: float, main_s: float, features: list[float]
) -> Iterator[tuple[float, list[float]]]:
    """A part of the whole project; of several programs that last the one that takes longest."""
    if features[_IS_WHOLE]:
        features = [*features[:_IS_WHOLE], 0.0, *features[_IS_WHOLE + 1 :]]
        yield typical_s, features
    if features[_NUM_LASTING] > 1:
        yield main_s + SHORT_S, [*features[:_NUM_LASTING], 1.0, *features[_NUM_LASTING + 1 :]]


def _untested(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in _OTHER_LETTERS]


def _flags_of(words: Sequence[str]) -> list[float]:
    lines = "\n".join(words)[:_MAX_FLAG_CHARS]
    return [0.0 if pattern.search(lines) is None else 1.0 for pattern in _PATTERNS]


def _inline_waits_s(programs: Sequence[Program]) -> float:
    """Seconds that inline code asks to wait: `python -c 'time.sleep(5)'`, or in a here-document."""
    seconds = 0.0
    for program in programs:
        for code in _codes_of(program):
            if "sleep" in code:
                seconds += sum(float(wait) for wait in _INLINE_WAIT.findall(code)[:8])
    return min(seconds, _NO_TIMEOUT_S)


def _imports_s(programs: Sequence[Program]) -> float:
    """Seconds that the imports of inline Python usually take; the slowest counts."""
    seconds = 0.0
    for program in programs:
        if program.name == "python":
            for code in _codes_of(program):
                for package in _IMPORT.findall(code)[:16]:
                    seconds = max(seconds, _IMPORT_S.get(package, 0.0))
    return seconds


def _codes_of(program: Program) -> Sequence[str]:
    """The code an interpreter runs that the text shows, its beginning at least."""
    return (program.code, program.stdin) if program.name in INTERPRETERS else ()


def _inline_chars(program: Program | None) -> int:
    return 0 if program is None else len(program.code) + len(program.stdin)
