"""What of a command tells its duration in a project never seen: the features of the prior."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.program import INTERPRETERS
from agentkv.durations.modes import mode_of
from agentkv.durations.timeline import (
    LASTING_S,
    SHORT_S,
    end_s,
    limit_s,
    repeats,
    sleeps_s,
    timed,
)

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
