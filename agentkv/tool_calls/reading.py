"""Reads a whole message: its fields first, then its text from one opener to the next."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from agentkv.tool_calls import (
    fences,
    harmony,
    json_calls,
    tagged_calls,
    thoughts,
    token_calls,
    xml_calls,
)
from agentkv.tool_calls.call import ToolCall
from agentkv.tool_calls.messages import body_of, structured_calls, texts
from agentkv.tool_calls.reply_text import Reading, ReplyText

MAX_OPENERS = 5_000
"""Blocks, tags and tokens read per reply: what is behind them in one that has more is noise."""

_Reader = Callable[[ReplyText, re.Match[str]], Reading | None]
_READERS: Mapping[str, tuple[_Reader, tuple[str, ...]]] = {
    "fence": (fences.read_fence, fences.OPENERS),
    "function": (xml_calls.read_function, (xml_calls.FUNCTION_OPENER,)),
    "hermes": (json_calls.read_tag, (json_calls.TAG_OPENER,)),
    "glm": (xml_calls.read_glm, (xml_calls.GLM_OPENER,)),
    "invoke": (xml_calls.read_invoke, (xml_calls.INVOKE_OPENER,)),
    "pythontag": (json_calls.read_python_tag, (json_calls.PYTHON_TAG_OPENER,)),
    "kimi": (token_calls.read_kimi, (token_calls.KIMI_OPENER,)),
    "kimibare": (token_calls.read_kimi_bare, (token_calls.KIMI_BARE_OPENER,)),
    "deepseek": (token_calls.read_deepseek, (token_calls.DEEPSEEK_OPENER,)),
    "harmony": (harmony.read_message, (harmony.OPENER,)),
    "mistral": (token_calls.read_mistral, (token_calls.MISTRAL_OPENER,)),
    "mistralargs": (token_calls.read_mistral_args, (token_calls.MISTRAL_ARGS_OPENER,)),
    "tagged": (tagged_calls.read_tag, (tagged_calls.OPENER,)),
    "bare": (json_calls.read_bare, json_calls.BARE_OPENERS),
}
_OPENERS = {
    **{kind: openers for kind, (_, openers) in _READERS.items()},
    "thought": thoughts.OPENERS,
    "endofthought": thoughts.CLOSERS,
}
# Each alternative starts with a letter as such and is named by an empty group at its end: so the
# search skips all text that opens nothing at the speed of C.
_OPENER = re.compile(
    "|".join(
        f"{opener}(?P<{kind}_{number}>)"
        for kind, openers in _OPENERS.items()
        for number, opener in enumerate(openers)
    )
)
_BLOCKS = ("fenced", "tagged")
_QUOTES = "'\"`"


def parse_tool_calls(message: object) -> list[ToolCall]:
    """The tool calls in a string, a dict, or an OpenAI or Anthropic message or response, in order.

    Calls in fields of the message count where there are any, since its text is then talk about
    them; else those written in the text, where blocks of bash beside calls in a model's own
    format are talk as well. Never raises, whatever the message is; linear in its length.
    """
    body = body_of(message)
    structured = structured_calls(body)
    if structured is not None:
        return structured
    return _TextScan("\n".join(texts(body))).calls()


class _TextScan:
    """One pass over a reply's text, from opener to opener."""

    def __init__(self, text: str) -> None:
        self._reply = ReplyText(harmony.with_tokens(text))
        self._calls: list[ToolCall] = []
        self._num_calls_before_thought = 0

    def calls(self) -> list[ToolCall]:
        position = 0
        for _ in range(MAX_OPENERS):
            opener = _OPENER.search(self._reply.text, position)
            if opener is None:
                break
            position = self._read(opener)
        marked = [call for call in self._calls if call.source not in _BLOCKS]
        return marked or self._calls

    def _read(self, opener: re.Match[str]) -> int:
        """Reads what opens there, and says where the text goes on."""
        kind = str(opener.lastgroup).partition("_")[0]
        if kind == "thought":
            return self._read_thought(opener)
        if kind == "endofthought":
            return self._end_thought(opener)
        reading = _READERS[kind][0](self._reply, opener)
        if reading is None:
            return opener.start() + 1
        if reading.is_end_of_thought:
            self._drop_thought()
        elif not self._is_quoted(opener.start(), reading.end):
            self._calls += reading.calls
        self._reply.floor = reading.end
        return reading.end

    def _read_thought(self, opener: re.Match[str]) -> int:
        """Skips a thought; a tag in the middle of a line is one only if it is closed as such."""
        if not self._reply.is_at_line_start(opener.start()):
            if not thoughts.is_mention(self._reply.text, opener.start(), opener.end()):
                self._num_calls_before_thought = len(self._calls)
            return opener.end()
        end = thoughts.end_of_thought(self._reply, opener)
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
