"""What a program does instead of its usual work: answer a question, tell its plan, run until it is
stopped, go to the background. Its usual runs say nothing of such a run."""

from __future__ import annotations

import re
from itertools import pairwise, takewhile

from agentkv.commands import Program
from agentkv.commands.program import SHELLS, runs_tasks, takes_operands
from agentkv.durations.waits import has_letter, runs_until_stopped

_HELP = frozenset({"--help", "-help"})
_VERSION = frozenset({"--version", "-version"})
_ANSWERS = frozenset({"help", "version"})
"""Subcommands that answer."""
_SHORT = frozenset({"-V", "-h"})
"""They ask where they stand alone, but not of those with whom they are usual."""
_NO_QUESTION = frozenset({"ctest", "df", "du", "free", "ls", "mvn", "sort"})
_ASKED_BY_V = frozenset(
    """
    bun bundle clang cmake docker eslint g++ gcc gem git gradle gradlew helm jest make mvn mvnw
    nginx node npm npx php pnpm prettier ruby terraform tsc vite webpack yarn
    """.split()  # noqa: SIM905 - the list reads best as text
)
"""With others a lone `-v` makes a usual run say more."""
_SYNTAX_CHECKS = {
    **dict.fromkeys(SHELLS, frozenset({"-n"})),
    "node": frozenset({"--check", "-c"}),
    "perl": frozenset({"-c", "-wc", "-cw"}),
    "php": frozenset({"-l"}),
    "ruby": frozenset({"-c", "-wc", "-cw"}),
}
"""Options that have a script read, not run."""
_PASSES_ON = (":exec", ":run")
"""What stands behind these is for another program, mostly one that is built or started first."""
_PLANS = re.compile(
    r"--(?:co|collect-only|dry-run|dryrun|just-print|list|list-tests|listTests|setup-plan|what-if)"
    r"(?:=(?!false|none).*)?"
)
_DETACHED = re.compile(
    r"--(?:background|daemon|daemonize|detach|detached|fork)(?:=(?!no|false).*)?"
)
_NO = frozenset({"0", "false", "no"})
_DETACH_LETTERS = {
    "celery": "D",
    "docker:run": "d",
    "gunicorn": "D",
    "haproxy": "D",
    "memcached": "d",
    "php-fpm": "D",
    "podman:run": "d",
    "uwsgi": "d",
}
"""By name or key."""


def mode_of(program: Program) -> str:
    """What sets its run apart from the usual ones of the same program; empty for a usual one."""
    if is_question(program):
        return "question "
    if program.is_endless or runs_until_stopped(program):
        return "endless "
    if detaches(program):
        return "detached "
    return "plan " if tells_its_plan(program) else ""


def is_question(program: Program) -> bool:
    """Whether it is only asked for its help or its version: `pytest --help`, `docker version`.

    Or whether a script is in order: `bash -n x.sh`. A version with a word behind it is an
    argument: `helm install x --version 1.2`.
    """
    words = program.argv[1:]
    if words == ("-v",) and program.name in _ASKED_BY_V:
        return True
    if checks := _SYNTAX_CHECKS.get(program.name):
        options = takewhile(lambda word: word[:1] == "-", words)
        if not checks.isdisjoint(options):
            return True
    if len(words) == 1 and words[0] in _HELP | _VERSION | _SHORT:
        return words[0] not in _SHORT or program.name not in _NO_QUESTION
    if takes_operands(program.name):
        return False
    name, *subcommands = program.key.split(":")
    if not runs_tasks(name) and program.key.endswith(_PASSES_ON):
        words = words[:2]
    elif not _ANSWERS.isdisjoint(subcommands[:2]) and "run" not in subcommands:
        return True
    return any(
        word in _HELP or (word in _VERSION and after[:1] == "-")
        for word, after in pairwise((*words, "-"))
    )


def detaches(program: Program) -> bool:
    """Whether it sends itself to the background and returns: `redis-server --daemonize yes`."""
    words = program.argv[1:]
    letters = _DETACH_LETTERS.get(program.name, _DETACH_LETTERS.get(program.key, ""))
    if letters and has_letter(words, letters):
        return True
    return any(
        word[:2] == "--" and _DETACHED.fullmatch(word) and after not in _NO
        for word, after in pairwise((*words, ""))
    )


def tells_its_plan(program: Program) -> bool:
    """Whether it only says what it would do: `pytest --collect-only`, `make -n`."""
    words = program.argv[1:]
    is_dry_make = program.name == "make" and "-n" in words
    return is_dry_make or any(word[:2] == "--" and _PLANS.fullmatch(word) for word in words)
