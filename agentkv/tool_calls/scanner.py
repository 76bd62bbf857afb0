"""Reads a reply's text from one opener to the next, thoughts aside."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from agentkv.tool_calls import (
    bash_tags,
    fences,
    json_calls,
    pythonic_calls,
    thoughts,
    token_calls,
    xml_calls,
)
from agentkv.tool_calls.call import ToolCall
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.token_calls import with_tokens

MAX_OPENERS = 2_000
"""Blocks, tags and tokens read per reply: what is behind them in one that has more is noise."""

_BLOCKS = ("fenced", "tagged")
_QUOTES = "'\"`"


def calls_in_text(text: str) -> list[ToolCall]:
    """The calls written in a text, in order; linear in its length.

    Blocks of bash beside calls in a model's own format are talk about them; so are the calls of a
    draft beside others.
    """
    scan = _TextScan(text)
    calls = scan.calls()
    return calls if calls or not scan.has_draft else _TextScan(text, reads_drafts=True).calls()


class _TextScan:
    """One pass over a reply's text, from opener to opener."""

    def __init__(self, text: str, *, reads_drafts: bool = False) -> None:
        self.has_draft = False
        self._reads_drafts = reads_drafts
        self._reply = ReplyText(with_tokens(text))
        self._calls: list[ToolCall] = []
        self._num_calls_before_thought = 0

    def calls(self) -> list[ToolCall]:
        position = 0
        for _ in range(MAX_OPENERS):
            opener = OPENER.search(self._reply.text, position)
            if opener is None:
                break
            position = self._read(opener)
        marked = [call for call in self._calls if call.source not in _BLOCKS]
        return marked or self._calls

    def _read(self, opener: re.Match[str]) -> int:
        """Reads what opens there, and says where the text goes on."""
        kind = kind_of(opener)
        if kind == THOUGHT:
            return self._read_thought(opener)
        if kind == END_OF_THOUGHT:
            return self._end_thought(opener)
        if kind == DRAFT:
            return self._read_draft(opener)
        reading = READERS[kind][0](self._reply, opener)
        if reading is None:
            return opener.start() + 1
        if reading.is_end_of_thought:
            self._drop_thought()
        elif not self._is_quoted(opener.start(), reading.end):
            self._calls += reading.calls
        self._reply.floor = reading.end
        return reading.end

    def _read_thought(self, opener: re.Match[str]) -> int:
        """Skips a thought; one in the middle of a line may be talk, unless it ends as a thought."""
        reply = self._reply
        if not reply.is_at_line_start(opener.start()):
            if thoughts.is_mention(reply.text, opener.start(), opener.end()):
                return opener.end()
            if not thoughts.opens_within_line(reply, opener):
                self._num_calls_before_thought = len(self._calls)
                return opener.end()
        return self._skip(thoughts.end_of_thought(reply, opener))

    def _read_draft(self, opener: re.Match[str]) -> int:
        """Skips a draft, at first: in a reply with no call outside of it, it is the answer."""
        if self._reads_drafts or not self._reply.is_at_line_start(opener.start()):
            return opener.end()
        if (end := thoughts.end_of_thought(self._reply, opener)) is None:
            return opener.end()
        self.has_draft = True
        return self._skip(end)

    def _skip(self, end: int | None) -> int:
        self._reply.floor = len(self._reply.text) if end is None else end
        return self._reply.floor

    def _end_thought(self, closer: re.Match[str]) -> int:
        if not thoughts.is_mention(self._reply.text, closer.start(), closer.end()):
            self._drop_thought()
            self._reply.floor = closer.end()
        return closer.end()

    def _drop_thought(self) -> None:
        """What was read since a thought opened, in the reply or before it, was thinking."""
        del self._calls[self._num_calls_before_thought :]
        self._num_calls_before_thought = 0

    def _is_quoted(self, start: int, end: int) -> bool:
        """Whether quotes stand around a call: then it is an example."""
        quote = self._reply.text[start - 1 : start] if start else ""
        return bool(quote) and quote in _QUOTES and self._reply.text.startswith(quote, end)


# What a call or a thought may open with, as one pattern, and the reader of each kind.

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
    "gemma": (token_calls.read_call, token_calls.OPENERS),
    "harmony": (token_calls.read_message, (token_calls.OPENER,)),
    "mistral": (token_calls.read_mistral, (token_calls.MISTRAL_OPENER,)),
    "mistralargs": (token_calls.read_mistral_args, (token_calls.MISTRAL_ARGS_OPENER,)),
    "tagged": (bash_tags.read_tag, (bash_tags.OPENER,)),
    "othertag": (bash_tags.read_other, (bash_tags.OTHER_OPENER,)),
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
