"""Reads a whole message: its fields first, then its text."""

from __future__ import annotations

import re

from agentkv.tool_calls.call import ToolCall, bash_call
from agentkv.tool_calls.messages import body_of, structured_calls, texts

_BASH_FENCE = re.compile(
    r"^ {0,3}(?P<fence>`{3,})(?:bash|sh|shell)[^\n`]*\n(?P<body>.*?)^ {0,3}(?P=fence)`*[ \t]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


def parse_tool_calls(message: object) -> list[ToolCall]:
    """The tool calls in a string, a dict, or an OpenAI or Anthropic message or response, in order.

    Calls in fields of the message count where there are any, since its text is then talk about
    them; else those written in the text. Never raises, whatever the message is.
    """
    body = body_of(message)
    structured = structured_calls(body)
    if structured is not None:
        return structured
    text = _THOUGHTS.sub("", "\n".join(texts(body)))
    return [
        call for match in _BASH_FENCE.finditer(text) for call in bash_call(match["body"], "fenced")
    ]
