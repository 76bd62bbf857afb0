"""The names under which the default predictor remembers a command's runs, from alike to identical.

Called by `backoff` once per new text. Knows nothing of durations.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from agentkv.commands import CommandAnalysis, Program
from agentkv.commands.program import module_of, word_set
from agentkv.durations.typical import mode_of

# They shape another program's output; their own time hardly counts.
_FILTERS = word_set(
    "awk cat cut echo exit grep head jq printf sed sort tail tee test tr true uniq wc"
)
_NUMBER = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b|\d+")
_MAX_WORD_CHARS = 60
_MAX_FLAG_CHARS = 30
_MAX_KEY_CHARS = 400
_MAX_FLAGS = 8
_MAX_EFFECTS = 20


class Keys(NamedTuple):
    """The keys of a command, each under 500 characters."""

    levels: tuple[str, str, str, str]
    """Groups of runs, each more alike than the one before; the last is of exactly this text."""
    effects: tuple[str, ...]
    """Parts of the command, each of which may make it slower or faster."""


LEVEL_NAMES = ("the same program", "the same options and target", "the same words", "this command")
THIS_COMMAND = 3
"""The level of exactly this text."""


def keys_of(command: CommandAnalysis, main: Program | None) -> Keys:
    """Return the keys of a command whose main program is `main`."""
    text = command.text[:_MAX_KEY_CHARS]
    if main is None:
        return Keys(("", "", "", text), ("*",))
    core = [p for p in command.programs if p.name not in _FILTERS and not p.is_background] or [main]
    # `python -m pip install x` is a `pip install x`
    core, main = [module_of(p) or p for p in core], module_of(main) or main
    modes = [mode_of(program) for program in core]
    effects = ["*"]
    effects += [f"{mode}{program.key}" for mode, program in zip(modes, core, strict=True)]
    effects += [f"{mode}{program.name} *" for mode, program in zip(modes, core, strict=True)]
    options: list[str] = []
    shapes: list[str] = []
    target = ""
    for mode, program in zip(modes, core, strict=True):
        words = _words(program)
        flags = sorted({_masked_flag(word) for word in words if word[:1] == "-"})[:_MAX_FLAGS]
        options += flags
        plain = [word if len(word) < _MAX_WORD_CHARS and " " not in word else "*" for word in words]
        shape = " ".join((program.name, *plain))[:_MAX_KEY_CHARS]
        shapes.append(shape if program.name == "sleep" else _NUMBER.sub("0", shape))
        operands = [word for word in plain if word[:1] != "-"]
        parts = (part.rstrip("/") for part in (*flags, *operands) if part != "*")
        effects += [f"{mode}{program.key} {part}" for part in parts]
        if program == main:
            own = [word for word in words if word[:1] != "-"]
            target = "".join(own[_num_named(program) :][:1])[:_MAX_WORD_CHARS]
    together = "|".join(sorted({program.key for program in core}))
    levels = (_own_key(main), f"{together} {target} {' '.join(options)}", "; ".join(shapes))
    mode = mode_of(main)
    first, second, third = (f"{mode}{level}"[:_MAX_KEY_CHARS] for level in levels)
    unique = [effect[:_MAX_KEY_CHARS] for effect in dict.fromkeys(effects)]
    return Keys((first, second, third, text), tuple(unique[:_MAX_EFFECTS]))


def digested(keys: Keys) -> Keys:
    """The keys as digests of 8 bytes, so that a saved state holds no command, nor a secret in one.

    A guess of the whole command can still be confirmed.
    """
    levels, effects = ([_digest(key) for key in group] for group in keys)
    return Keys((levels[0], levels[1], levels[2], levels[3]), tuple(effects))


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode(errors="replace"), digest_size=8).hexdigest()


def _own_key(program: Program) -> str:
    """Return a `sleep` with its length, since it says nothing of other lengths; else the key."""
    return " ".join(program.argv) if program.name == "sleep" else program.key


def _num_named(program: Program) -> int:
    """Count its words that are neither option nor target: those in its key, and inline code."""
    named = program.key.split(":")[1:]
    return sum(part[:1] != "-" for part in named) + bool(program.code)


def _words(program: Program) -> tuple[str, ...]:
    words = program.argv[1:]
    if program.name == "git" and "-C" in words[:2]:
        position = words.index("-C")
        words = words[:position] + words[position + 2 :]
    return words


def _masked_flag(word: str) -> str:
    word = word[:_MAX_FLAG_CHARS]
    return word if word.isalpha() else _NUMBER.sub("0", word)
