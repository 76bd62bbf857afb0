"""Finds the calls written in a reply's text: one pass, from what may open a call to the next.

`_DIALECTS` lists every format with its reader, `_DIALECTS`' comment says how to add one. Called by
`parse_tool_calls` alone, which imports this module late: its pattern takes 10 ms to compile.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from agentkv.tool_calls import (
    fences,
    json_calls,
    pythonic_calls,
    thoughts,
    token_calls,
    xml_calls,
)
from agentkv.tool_calls.call import ToolCall
from agentkv.tool_calls.reply_text import Reading, ReplyText

MAX_OPENERS = 2_000
"""Blocks, tags and tokens read per reply; a reply that has more is noise from there on."""

_Reader = Callable[[ReplyText, re.Match[str]], Reading | None]

# A new dialect is one line here: a reader, and patterns of what opens its calls. The reader gets
# the reply and the match of the opener, and returns a Reading, or None if nothing opens there.
# All patterns become one, so a group name (`(?P<glm_name>...)`) may occur once among all
# dialects: `re` refuses to compile a second one. At one place the first that matches counts.
_DIALECTS: tuple[tuple[_Reader, tuple[str, ...]], ...] = (
    (fences.read_fence, fences.OPENERS),
    (xml_calls.read_function, (xml_calls.FUNCTION_OPENER,)),
    (json_calls.read_tag, (json_calls.TAG_OPENER,)),
    (xml_calls.read_glm, (xml_calls.GLM_OPENER,)),
    (xml_calls.read_invoke, (xml_calls.INVOKE_OPENER,)),
    (xml_calls.read_minimax_m3, (xml_calls.MINIMAX_M3_OPENER,)),
    (pythonic_calls.read_token, (pythonic_calls.TOKEN_OPENER, pythonic_calls.TAG_OPENER)),
    (pythonic_calls.read_bare, (pythonic_calls.BARE_OPENER,)),
    (json_calls.read_token, json_calls.TOKEN_OPENERS),
    (json_calls.read_react, (json_calls.REACT_OPENER,)),
    (token_calls.read_named, token_calls.NAMED_OPENERS),
    (token_calls.read_gemma, token_calls.GEMMA_OPENERS),
    (token_calls.read_harmony, (token_calls.HARMONY_OPENER,)),
    (fences.read_bash_tag, (fences.BASH_OPENER,)),
    (fences.read_typed, (fences.TYPED_OPENER,)),
    (json_calls.read_bare, json_calls.BARE_OPENERS),
)
_BLOCKS = ("fenced", "tagged")
_TALK_IN_THOUGHT = (*_BLOCKS, "react", "llama", "terminus")
"""Sources that count in no thought; a call between tags or tokens ends a thought never closed."""


def calls_in_text(text: str) -> list[ToolCall]:
    """Return the calls written in a text, in order; linear in its length.

    Calls in a model's own format turn blocks of bash next to them into talk.
    """
    scan, position = _Scan(text), 0
    for _ in range(MAX_OPENERS):
        opener = _OPENER.search(scan.reply.text, position)
        if opener is None:
            break
        position = scan.read(opener)
    marked = [call for call in scan.calls if call.source not in _BLOCKS]
    return marked or scan.calls


class _Scan:
    """One pass over a reply's text, from opener to opener."""

    def __init__(self, text: str) -> None:
        self.reply = ReplyText(text)
        self.calls: list[ToolCall] = []
        self._num_calls_before_thought = 0
        self._is_in_open_thought = False

    def read(self, opener: re.Match[str]) -> int:
        """Read what opens at a match; return where the scan continues."""
        kind, _, number = str(opener.lastgroup).partition("_")
        if kind == "thought":
            return self._read_thought(opener)
        if kind == "end":
            return self._end_thought(opener)
        reading = _CALLS[int(number)][0](self.reply, opener)
        if reading is None:
            return opener.start() + 1
        if reading.is_end_of_thought:
            self._drop_thought()
        elif not self._is_quoted(opener.start(), reading.end):
            is_open = self._is_in_open_thought
            self.calls += [
                call for call in reading.calls if not (is_open and call.source in _TALK_IN_THOUGHT)
            ]
        self.reply.floor = reading.end
        return reading.end

    def _read_thought(self, opener: re.Match[str]) -> int:
        """Skip a thought; one that opens within a line is taken for talk unless it is closed.

        In one that is never closed, calls of the model's own format are read: vLLM's reasoning
        parsers end a thought there.
        """
        reply = self.reply
        if not reply.is_at_line_start(opener.start()):
            if thoughts.is_mention(reply.text, opener.start(), opener.end()):
                return opener.end()
            if not thoughts.opens_within_line(reply, opener):
                self._num_calls_before_thought = len(self.calls)
                return opener.end()
        end = thoughts.end_of_thought(reply, opener)
        self._is_in_open_thought |= end is None
        reply.floor = end or opener.end()
        return reply.floor

    def _end_thought(self, closer: re.Match[str]) -> int:
        if not thoughts.is_mention(self.reply.text, closer.start(), closer.end()):
            self._drop_thought()
            self.reply.floor = closer.end()
        return closer.end()

    def _drop_thought(self) -> None:
        """Forget the calls since a thought opened, in the reply or in the prompt before it."""
        del self.calls[self._num_calls_before_thought :]
        self._num_calls_before_thought = 0

    def _is_quoted(self, start: int, end: int) -> bool:
        """Whether quotes stand around a call, which makes it an example."""
        quote = self.reply.text[max(start - 1, 0) : start]
        return quote in ("'", '"', "`") and self.reply.text.startswith(quote, end)


_CALLS = [(reader, pattern) for reader, patterns in _DIALECTS for pattern in patterns]
# An empty group at the end of each pattern says by its name which one matched. Each starts with a
# literal character, so that `re` skips all others at C speed.
_OPENERS = [
    f"{pattern}(?P<{kind}_{number}>)"
    for kind, patterns in (
        ("call", [pattern for _, pattern in _CALLS]),
        ("thought", thoughts.OPENERS),
        ("end", thoughts.CLOSERS),
    )
    for number, pattern in enumerate(patterns)
]
_TAGS = "|".join(pattern[1:] for pattern in _OPENERS if pattern.startswith("<"))
_OTHERS = [pattern for pattern in _OPENERS if not pattern.startswith("<")]
_OPENER = re.compile("|".join([rf"<(?=/?[\w|\uff5c])(?:{_TAGS})", *_OTHERS]))
