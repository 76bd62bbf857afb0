"""Under which names a command's runs are remembered: from what is like it to the very same text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentkv.commands import CommandAnalysis, Program

# They shape another program's output; their own time hardly counts.
_FILTERS = frozenset(
    {
        *("awk", "cat", "cut", "echo", "exit", "grep", "head", "jq", "printf", "sed", "sort"),
        *("tail", "tee", "test", "tr", "true", "uniq", "wc"),
    }
)
_NUMBER = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{7,40}\b|\d+")
_MAX_WORD_CHARS = 60
_MAX_FLAG_CHARS = 30
_MAX_KEY_CHARS = 400
_MAX_FLAGS = 8
_MAX_EFFECTS = 20


@dataclass(frozen=True, slots=True)
class Keys:
    """`levels`: names of groups of runs, each more alike than the one before, the last of exactly
    this text. `effects`: parts of the command, each of which may make it slower or faster."""

    levels: tuple[str, ...]
    effects: tuple[str, ...]


LEVEL_NAMES = ("the same program", "the same options and target", "the same words", "this command")


def keys_of(command: CommandAnalysis, main: Program | None) -> Keys:
    """The keys of a command whose main program is `main`. Every key is under 500 characters."""
    if main is None:
        return Keys(("", "", "", command.text[:_MAX_KEY_CHARS]), ("*",))
    core = [p for p in command.programs if p.name not in _FILTERS and not p.is_background] or [main]
    words = [_words(program) for program in core]
    flags = [sorted({_masked_flag(w) for w in own if w[:1] == "-"})[:_MAX_FLAGS] for own in words]
    together = "|".join(sorted({program.key for program in core}))
    options = " ".join(flag for own in flags for flag in own)
    shape = "; ".join(
        f"{program.name} {' '.join(word if _is_plain(word) else '*' for word in own)}"
        for program, own in zip(core, words, strict=True)
    )
    return Keys(
        levels=(
            main.key,
            f"{together} {_target(main)} {options}"[:_MAX_KEY_CHARS],
            _NUMBER.sub("0", shape[:_MAX_KEY_CHARS]),
            command.text[:_MAX_KEY_CHARS],
        ),
        effects=_effects(core, words, flags),
    )


def _effects(
    core: list[Program], words: list[list[str]], flags: list[list[str]]
) -> tuple[str, ...]:
    found = {"*": None}
    for program in core:
        found[program.key] = None
        found[f"{program.name} *"] = None
    for program, own_words, own_flags in zip(core, words, flags, strict=True):
        for flag in own_flags:
            found[f"{program.key} {flag}"] = None
        for word in own_words:
            if word[:1] != "-" and _is_plain(word):
                found[f"{program.key} {word.rstrip('/')}"] = None
    return tuple(found)[:_MAX_EFFECTS]


def _words(program: Program) -> list[str]:
    words = list(program.argv[1:])
    if program.name == "git" and "-C" in words[:2]:
        position = words.index("-C")
        del words[position : position + 2]
    return words


def _target(program: Program) -> str:
    """The first word that is neither an option nor part of the key: what the program works on."""
    operands = [word for word in _words(program) if word[:1] != "-"]
    depth = program.key.count(":")
    return operands[depth][:_MAX_WORD_CHARS] if len(operands) > depth else ""


def _masked_flag(word: str) -> str:
    return _NUMBER.sub("0", word[:_MAX_FLAG_CHARS])


def _is_plain(word: str) -> bool:
    return len(word) < _MAX_WORD_CHARS and " " not in word
