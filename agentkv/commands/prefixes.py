"""Sees through what stands before a program: sudo, env, timeout, xargs, `uv run`, `bash -c`."""

from __future__ import annotations

import re
from typing import NamedTuple

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)([smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
MAX_PREFIXES = 8

# Program: its options that take a value. Other words beginning with "-" are flags.
_WRAPPERS = {
    "sudo": frozenset({"-u", "-g", "-h", "-p", "-C", "-U", "-D", "--user", "--group"}),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "-C", "-S", "--unset", "--chdir"}),
    "time": frozenset({"-f", "-o", "--format", "--output"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "ionice": frozenset({"-c", "-n", "-p"}),
    "nohup": frozenset[str](),
    "setsid": frozenset[str](),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "unbuffer": frozenset[str](),
    "command": frozenset[str](),
    "builtin": frozenset[str](),
    "exec": frozenset({"-a"}),
    "chronic": frozenset[str](),
    "timeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "gtimeout": frozenset({"-k", "-s", "--kill-after", "--signal"}),
    "xargs": frozenset(
        {"-I", "-n", "-P", "-L", "-d", "-a", "-E", "-s", "--max-args", "--max-procs"}
    ),
    "npx": frozenset({"-p", "--package"}),
    "bunx": frozenset[str](),
    "uvx": frozenset({"--from", "--with", "-p", "--python"}),
    "xvfb-run": frozenset({"-s", "-n", "--server-args", "--server-num"}),
}
_RUNNERS = {
    ("uv", "run"): frozenset({"--with", "--python", "-p", "--extra", "--group", "--project"}),
    ("poetry", "run"): frozenset[str](),
    ("pipenv", "run"): frozenset[str](),
    ("pdm", "run"): frozenset({"-p", "--project"}),
    ("hatch", "run"): frozenset[str](),
    ("rye", "run"): frozenset[str](),
    ("bundle", "exec"): frozenset[str](),
    ("conda", "run"): frozenset({"-n", "-p", "--name", "--prefix", "--cwd"}),
    ("mamba", "run"): frozenset({"-n", "-p", "--name", "--prefix", "--cwd"}),
    ("pnpm", "exec"): frozenset[str](),
    ("npm", "exec"): frozenset[str](),
    ("mise", "exec"): frozenset[str](),
    ("mise", "x"): frozenset[str](),
    ("direnv", "exec"): frozenset[str](),
}


class Unwrapped(NamedTuple):
    """The words of the program proper, the limit set on it, and bash text to read in its place."""

    argv: tuple[str, ...]
    timeout_s: float | None = None
    script: str | None = None


def unwrap(argv: tuple[str, ...]) -> Unwrapped:
    """Strip assignments and wrappers; for `bash -c TEXT` and `eval TEXT` give TEXT as `script`.

    A wrapper with nothing behind it (`env`, `time`) is the program itself.
    """
    timeout_s: float | None = None
    for _ in range(MAX_PREFIXES):
        bare = argv[_num_assignments(argv) :]
        if not bare:
            return Unwrapped(argv, timeout_s)
        name = bare[0].rsplit("/", 1)[-1]
        if name in _SHELLS or name == "eval":
            return Unwrapped(bare, timeout_s, _inline_script(name, bare))
        rest, limit_s = _behind(name, bare)
        if rest is None:
            return Unwrapped(bare, timeout_s)
        timeout_s = limit_s if timeout_s is None else min(timeout_s, limit_s or timeout_s)
        argv = rest
    return Unwrapped(argv, timeout_s)


def _num_assignments(argv: tuple[str, ...]) -> int:
    count = 0
    for word in argv:
        if not _ASSIGNMENT.fullmatch(word):
            break
        count += 1
    return count


def _behind(name: str, argv: tuple[str, ...]) -> tuple[tuple[str, ...] | None, float | None]:
    """The words behind one wrapper and the limit it sets; (None, None) if it is none."""
    skip, options = 1, _WRAPPERS.get(name)
    if options is None and len(argv) > 1:
        skip, options = 2, _RUNNERS.get((name, argv[1]))
    if options is None:
        return None, None
    index = skip
    while index < len(argv) and argv[index].startswith("-"):
        index += 2 if argv[index] in options else 1
    limit_s = None
    if name in ("timeout", "gtimeout") and index < len(argv):
        limit_s = duration_s(argv[index])
        index += 1
    rest = argv[index:]
    return (rest, limit_s) if rest[_num_assignments(rest) :] else (None, None)


def duration_s(word: str) -> float | None:
    """Seconds of a coreutils duration such as `60`, `1.5m` or `2h`; None if it is none."""
    match = _DURATION.fullmatch(word)
    return float(match[1]) * _SECONDS[match[2]] if match else None


def _inline_script(name: str, argv: tuple[str, ...]) -> str | None:
    if name == "eval":
        return " ".join(argv[1:])
    for index, word in enumerate(argv[1:], 1):
        if not word.startswith("-") or word == "-":
            return None
        if not word.startswith("--") and "c" in word[1:]:
            return argv[index + 1] if index + 1 < len(argv) else None
    return None
