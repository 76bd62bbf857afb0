"""Strips the wrappers before a program: sudo, env, timeout, xargs, `uv run`, `bash -c`.

Called by `analysis` for each command; the wrappers and the words they take are in `wrappers.toml`.
"""

from __future__ import annotations

import math
import re
import shlex
from itertools import dropwhile
from typing import Any, NamedTuple, cast

from agentkv.commands.program import SHELLS, base_name, invocation, tables_in, word_set
from agentkv.commands.quantities import duration_s

MAX_PREFIXES = 8


class Wrapper(NamedTuple):
    """How the words of one wrapper are read; `wrappers.toml` says what each field is."""

    options: frozenset[str] = frozenset()
    operands: int = 0
    script: frozenset[str] = frozenset()
    markers: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    counts_itself: bool = False
    has_tasks: bool = False


_TABLES = tables_in("commands", "wrappers.toml")
_WRAPPERS = {
    f"{name} {verb}".replace("_", " ").strip(): Wrapper(
        **cast(Any, {k: word_set(v) if isinstance(v, str) else v for k, v in row.items()})
    )
    for row in _TABLES["wrapper"]
    for names, verbs in [(row.pop("names"), row.pop("verbs", ""))]
    for name in names.split()
    for verb in verbs.split() or [""]
}
"""Wrappers by name, and by name and subcommand."""
_GLOBAL_OPTIONS, _TASK_NAMES = (
    word_set(_TABLES[name]) for name in ("global_options", "task_names")
)
_RUNNER_NAMES = frozenset(name.partition(" ")[0] for name in _WRAPPERS if " " in name)
_NAMES = frozenset({*_WRAPPERS, *_RUNNER_NAMES})
_ASSIGNMENT = re.compile(r"(?:[A-Za-z_]\w*|\$env:\w+)\+?=.*", re.DOTALL)
_SPLIT_OPTIONS = frozenset({"-S", "--split-string"})
_ATTACHED_SPLIT = re.compile(r"-[iv0]{0,3}S(.+)", re.DOTALL)
_FOR_EACH = re.compile(r"-[0rtx]{0,3}(?:[iI].*|[nL][0-9]*)|--(?:replace|max-args|max-lines)\b.*")
_SIDE_BY_SIDE = re.compile(r"-P.*|--max-procs\b.*")
_INPUTS = frozenset({":::", ":::+", "::::", "::::+"})


class Unwrapped(NamedTuple):
    """A program behind its wrappers, and what that program runs in turn."""

    argv: tuple[str, ...]
    timeout_s: float | None = None
    script: str | None = None
    """Bash text to read in place of the program, or in addition if `counts_itself`."""
    inner: tuple[str, ...] = ()
    """Words of the program that it runs, in addition to itself."""
    reads_script: bool = False
    """True for a shell that reads its script from standard input."""
    counts_itself: bool = False
    """True for a wrapper that takes time itself, so it counts next to what it runs."""


def unwrap(argv: tuple[str, ...]) -> Unwrapped:
    """Strip assignments and wrappers; the TEXT of `bash -c TEXT` and `eval TEXT` is the `script`.

    A wrapper with nothing behind it (`env`, `time`) is the program itself.
    """
    timeout_s: float | None = None
    for _ in range(MAX_PREFIXES):
        if not (bare := _without_assignments(argv)):
            return Unwrapped(argv, timeout_s)
        name = base_name(bare[0])
        if name in ("start-sleep", "timeout") and (seconds := _wait_on_windows(name, bare)):
            return Unwrapped(("sleep", seconds), timeout_s)
        if name == "eval":
            return Unwrapped(bare, timeout_s, " ".join(bare[1:]))
        if name in SHELLS:
            found = invocation(name, bare)
            script = found.what if found.kind == "code" else None
            return Unwrapped(bare, timeout_s, script, reads_script=found.kind == "stdin")
        behind = _behind(name, bare) if name in _NAMES else None
        if behind is None:
            is_login = name in ("ssh", "su")
            return Unwrapped(bare, timeout_s, reads_script=is_login, counts_itself=name == "ssh")
        timeout_s = tighter(timeout_s, behind.timeout_s)
        if behind.counts_itself or behind.script is not None:
            runs, counts = behind.argv, behind.counts_itself
            return Unwrapped(bare, timeout_s, behind.script, runs, counts_itself=counts)
        argv = behind.argv
    return Unwrapped(argv, timeout_s)


def runs_for_each(argv: tuple[str, ...]) -> bool:
    """Whether these words begin with an `xargs` that runs its program several times in turn."""
    if argv[0].rsplit("/", 1)[-1] != "xargs":
        return False
    options = argv[1 : _behind_options(argv, 1, _WRAPPERS["xargs"].options)]
    return any(map(_FOR_EACH.fullmatch, options)) and not any(map(_SIDE_BY_SIDE.match, options))


def tighter(limit_s: float | None, other_s: float | None) -> float | None:
    """The lower of two limits, of which None is no limit."""
    if limit_s is None or other_s is None:
        return other_s if limit_s is None else limit_s
    return min(limit_s, other_s)


def _wait_on_windows(name: str, argv: tuple[str, ...]) -> str | None:
    """The seconds of PowerShell's `Start-Sleep -Seconds 5` and cmd's `timeout /t 5`."""
    words = [word.lower() for word in argv[1:]]
    if name == "start-sleep" and words:
        return f"{words[-1]}e-3" if words[0][:2] == "-m" else words[-1]
    return words[1] if words[:1] == ["/t"] and len(words) > 1 else None


def _without_assignments(argv: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dropwhile(_ASSIGNMENT.fullmatch, argv))


def _behind(name: str, argv: tuple[str, ...]) -> Unwrapped | None:
    """Read what a wrapper runs; None if it runs nothing."""
    if name == "parallel":
        return _behind_parallel(argv)
    if name == "env" and (words := _split_string(argv)):
        return Unwrapped(words)
    found = _wrapper_of(name, argv)
    if found is None:
        return None
    wrapper, start = found
    script, index = _read_options(wrapper, argv, start)
    if script is not None:
        return Unwrapped((), script=script)
    if index is None:
        return None
    limit_s = None
    if name in ("timeout", "gtimeout") and index < len(argv):
        seconds = duration_s(argv[index])
        limit_s = None if not seconds or math.isinf(seconds) else seconds
        index += 1
    rest = argv[index:]
    if not _without_assignments(rest):
        return None
    if wrapper.has_tasks:
        if name == "hatch" and ":" in rest[0]:
            rest = (rest[0].rpartition(":")[2], *rest[1:])
        if rest[0] in _TASK_NAMES:
            return None
    if name == "ssh" or (len(rest) == 1 and " " in rest[0]):
        return Unwrapped((), limit_s, " ".join(rest), counts_itself=wrapper.counts_itself)
    return Unwrapped(rest, limit_s, counts_itself=wrapper.counts_itself)


def _wrapper_of(name: str, argv: tuple[str, ...]) -> tuple[Wrapper, int] | None:
    """The wrapper that these words begin with, and the index behind its name."""
    if name in _RUNNER_NAMES:
        runner, index = name, 1
        for _ in range(2):  # `uv run`, else `uv tool run`
            index = _behind_options(argv, index, _GLOBAL_OPTIONS) + 1
            runner = " ".join((runner, *argv[index - 1 : index]))
            if runner in _WRAPPERS:
                return _WRAPPERS[runner], index
    if name == "runuser" and "-u" in argv:
        name = "sudo"  # `runuser -u bob make`, against `runuser bob -c make`
    wrapper = _WRAPPERS.get(name)
    return None if wrapper is None else (wrapper, 1)


def _read_options(
    wrapper: Wrapper, argv: tuple[str, ...], index: int
) -> tuple[str | None, int | None]:
    """The bash text given as an option, else the index of the program; both None without one."""
    operands_left = wrapper.operands
    is_over = False
    while index < len(argv):
        word = argv[index]
        if word in wrapper.markers:
            return None, index + 1
        if word == "--" and not is_over:
            is_over = True
        elif word[:1] == "-" and not is_over:
            if word in wrapper.idle:
                return None, None
            name, has_value, value = word.partition("=")
            if has_value and name in wrapper.script:
                return value, None
            if _takes_next(word, wrapper.script):
                return (argv[index + 1], None) if index + 1 < len(argv) else (None, None)
            index += _takes_next(word, wrapper.options)
        elif wrapper.markers:
            pass
        elif not operands_left:
            return None, index
        else:
            operands_left -= 1
        index += 1
    return None, None


def _split_string(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The words that `env -S 'A=1 make all'` splits its option's value into, behind `env`."""
    options = _WRAPPERS["env"].options
    index = 1
    while index < len(argv) and argv[index][:1] == "-":
        word = argv[index]
        name, has_value, value = word.partition("=")
        index += 2 if _takes_next(word, options) else 1
        if _takes_next(word, _SPLIT_OPTIONS):
            text = "".join(argv[index - 1 : index])
        elif name == "--split-string" and has_value:
            text = value
        elif attached := _ATTACHED_SPLIT.fullmatch(word):
            text = attached[1]
        else:
            continue
        try:
            return ("env", *shlex.split(text), *argv[index:])
        except ValueError:
            return ("env", *text.split(), *argv[index:])
    return ()


def _behind_parallel(argv: tuple[str, ...]) -> Unwrapped | None:
    """Read GNU parallel, which passes its words to a shell, or else each of its inputs."""
    start = _behind_options(argv, 1, _WRAPPERS["parallel"].options)
    end = next((i for i, word in enumerate(argv) if word in _INPUTS), len(argv))
    words = argv[start:end]
    if words:
        return Unwrapped((), script=" ".join(words))
    inputs = [word for word in argv[end + 1 :] if word not in _INPUTS]
    return Unwrapped((), script="\n".join(inputs)) if inputs and argv[end] == ":::" else None


def _takes_next(word: str, with_value: frozenset[str]) -> bool:
    """Whether an option's value is the next word: `-u bob`, `-iu bob`, not `-n5`, `--user=x`."""
    if word in with_value or word[:2] == "--":
        return word in with_value
    for index in range(1, len(word)):
        if f"-{word[index]}" in with_value:
            return index == len(word) - 1
    return False


def _behind_options(argv: tuple[str, ...], index: int, with_value: frozenset[str]) -> int:
    """Index of the first word from `index` on that is neither an option nor the value of one."""
    while index < len(argv) and argv[index][:1] == "-":
        if argv[index] == "--":
            return index + 1
        index += 2 if _takes_next(argv[index], with_value) else 1
    return index
