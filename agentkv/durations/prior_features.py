"""What of a command tells its duration in a project never seen: the features of the prior."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.durations.typical import UNKNOWN_S, typical_s

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

_LASTING_S = 1.0
_SHORT_S = 0.02
# Each searched once in the words of the main program, one a line.
_WHOLE = re.compile(
    r"^(?:\./\.\.\.|\.\.\.|\.|/|--all|-A|--workspace|--all-targets|~|\$HOME)$|/\.\.\.$",
    re.MULTILINE,
)
_SELECTION = re.compile(
    r"^(?:-run|-k|--filter|--grep|-t|--testNamePattern|--test|--lib|--only|-bench|--tests)(?:=|$)"
    r"|::|_test\.|test_[^\n]{0,80}\.py$|\.(?:test|spec)\.[jt]sx?$|_spec\.rb$",
    re.MULTILINE,
)
_QUESTION = re.compile(
    r"^(?:--help|-h|help|--version|-V|version|--dry-run|--collect-only|--co|--list|-list|--check|-n)$",
    re.MULTILINE,
)
_REPEATED = re.compile(r"^(?:-race|-bench|--runs|--repeat|-count)(?:=|$)", re.MULTILINE)
_RECURSIVE = re.compile(r"^(?:-[a-zA-Z]{0,20}[rR][a-zA-Z]{0,20}|--recursive)$", re.MULTILINE)
_PATTERNS = (_WHOLE, _SELECTION, _QUESTION, _REPEATED, _RECURSIVE)
_INLINE_WAIT = re.compile(r"sleep\(\s*([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*\)")
_MAX_FLAG_CHARS = 600
_UNKNOWN_ROUNDS = 3
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
_INLINE = frozenset({"-c", "-e"})


class PriorInput(NamedTuple):
    """What the prior is computed from; `typical_s` is the sum over the foreground's programs."""

    typical_s: float
    wait_s: float
    timeout_s: float | None
    main: Program | None
    """The program that usually takes longest."""
    is_known: bool
    """Whether something is known of every program."""
    features: list[float]
    """The values of FEATURES, in that order."""


def prior_input(command: CommandAnalysis) -> PriorInput:
    programs = [program for program in command.programs if not program.is_background]
    known = [typical_s(program) for program in programs]
    typical = [
        (UNKNOWN_S if seconds is None else seconds) * _num_rounds(command, program)
        for program, seconds in zip(programs, known, strict=True)
    ]
    main = programs[typical.index(max(typical))] if typical else None
    words = main.argv[1:] if main is not None else ()
    last = programs[-1] if programs else None
    inline_s = _inline_waits_s(programs)
    imports_s = _imports_s(programs)
    waits_s = inline_s + sum(
        seconds
        for program, seconds in zip(programs, typical, strict=True)
        if program.name == "sleep"
    )
    timeout_s = main.timeout_s if main is not None else None
    features = [
        float(sum(seconds >= _LASTING_S for seconds in typical)),
        float(command.num_sequences),
        float(command.has_loop),
        math.log(command.loop_count or 1),
        *_flags_of(words),
        float(last is not None and last.is_piped and last.name == "head"),
        math.log(waits_s + _SHORT_S),
        math.log(timeout_s or _NO_TIMEOUT_S),
        float(len(programs) < len(command.programs)),
        math.log(_inline_chars(main) + 1),
    ]
    return PriorInput(
        sum(typical) + inline_s + imports_s + _SHORT_S,
        waits_s,
        timeout_s,
        main,
        None not in known,
        features,
    )


def _flags_of(words: Sequence[str]) -> list[float]:
    lines = "\n".join(words)[:_MAX_FLAG_CHARS]
    return [0.0 if pattern.search(lines) is None else 1.0 for pattern in _PATTERNS]


def _num_rounds(command: CommandAnalysis, program: Program) -> int:
    return (command.loop_count or _UNKNOWN_ROUNDS) if program.is_in_loop else 1


def _inline_waits_s(programs: Sequence[Program]) -> float:
    """Seconds that inline code asks to wait: `python -c 'time.sleep(5)'`, or in a here-document."""
    seconds = 0.0
    for program in programs:
        for code in (*program.argv[1:4], program.stdin):
            if "sleep(" in code:
                seconds += sum(float(wait) for wait in _INLINE_WAIT.findall(code)[:8])
    return min(seconds, _NO_TIMEOUT_S)


def _imports_s(programs: Sequence[Program]) -> float:
    """Seconds that the imports of inline Python usually take; the slowest counts."""
    seconds = 0.0
    for program in programs:
        if program.name == "python":
            for code in (*program.argv[1:4], program.stdin):
                for package in _IMPORT.findall(code)[:16]:
                    seconds = max(seconds, _IMPORT_S.get(package, 0.0))
    return seconds


def _inline_chars(program: Program | None) -> int:
    if program is None:
        return 0
    inline = sum(len(word) for word in program.argv[2:3] if program.argv[1] in _INLINE)
    return inline + len(program.stdin)
