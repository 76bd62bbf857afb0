"""What a call or a thought may open with, as one pattern, and the reader of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from agentkv.tool_calls import (
    fences,
    gemma_calls,
    harmony,
    json_calls,
    pythonic_calls,
    tagged_calls,
    thoughts,
    token_calls,
    xml_calls,
)
from agentkv.tool_calls.reply_text import Reading, ReplyText

THOUGHT, END_OF_THOUGHT, DRAFT = "thought", "endofthought", "draft"

# What may follow `<`, so that a row of them is no work.
_GUARDS = {"<": r"(?=/?[\w|\uff5c])"}
_LITERAL = re.compile(r"\\\W|[\w<`~/]")
_Reader = Callable[[ReplyText, re.Match[str]], Reading | None]
READERS: Mapping[str, tuple[_Reader, tuple[str, ...]]] = {
    "fence": (fences.read_fence, fences.OPENERS),
    "function": (xml_calls.read_function, (xml_calls.FUNCTION_OPENER,)),
    "hermes": (json_calls.read_tag, (json_calls.TAG_OPENER,)),
    "glm": (xml_calls.read_glm, (xml_calls.GLM_OPENER,)),
    "invoke": (xml_calls.read_invoke, (xml_calls.INVOKE_OPENER,)),
    "pythonic": (pythonic_calls.read_token, (pythonic_calls.TOKEN_OPENER,)),
    "pythonicbare": (pythonic_calls.read_bare, (pythonic_calls.BARE_OPENER,)),
    "jsontoken": (json_calls.read_token, json_calls.TOKEN_OPENERS),
    "kimi": (token_calls.read_kimi, (token_calls.KIMI_OPENER,)),
    "kimibare": (token_calls.read_kimi_bare, (token_calls.KIMI_BARE_OPENER,)),
    "deepseek": (token_calls.read_deepseek, (token_calls.DEEPSEEK_OPENER,)),
    "gemma": (gemma_calls.read_call, gemma_calls.OPENERS),
    "harmony": (harmony.read_message, (harmony.OPENER,)),
    "mistral": (token_calls.read_mistral, (token_calls.MISTRAL_OPENER,)),
    "mistralargs": (token_calls.read_mistral_args, (token_calls.MISTRAL_ARGS_OPENER,)),
    "tagged": (tagged_calls.read_tag, (tagged_calls.OPENER,)),
    "othertag": (tagged_calls.read_other, (tagged_calls.OTHER_OPENER,)),
    "bare": (json_calls.read_bare, json_calls.BARE_OPENERS),
}
_OPENERS = {
    **{kind: openers for kind, (_, openers) in READERS.items()},
    THOUGHT: thoughts.OPENERS,
    END_OF_THOUGHT: thoughts.CLOSERS,
    DRAFT: thoughts.DRAFT_OPENERS,
}


def _one_pattern() -> re.Pattern[str]:
    """All openers as one pattern, each named by an empty group at its end."""
    return re.compile(
        _alternatives(
            f"{opener}(?P<{kind}_{number}>)"
            for kind, openers in _OPENERS.items()
            for number, opener in enumerate(openers)
        )
    )


def _alternatives(patterns: Iterable[str], depth: int = 2) -> str:
    """The alternatives under the characters they start with.

    So the search skips at the speed of C what starts none.
    """
    branches: dict[str, list[str]] = {}
    for pattern in patterns:
        literal = _LITERAL.match(pattern)
        first = literal[0] if literal and depth else ""
        branches.setdefault(first, []).append(pattern.removeprefix(first))
    return "|".join(
        f"{first}{_GUARDS.get(first, '')}(?:{_alternatives(rests, depth - 1)})"
        if first
        else "|".join(rests)
        for first, rests in branches.items()
    )


OPENER = _one_pattern()


def kind_of(opener: re.Match[str]) -> str:
    """The kind of what opens there: a key of READERS, or of a thought."""
    return str(opener.lastgroup).partition("_")[0]
