"""Finds the tool calls in a model's reply, whether in fields of its own or written in its text."""

from __future__ import annotations

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, ToolCall
from agentkv.tool_calls.messages import body_of, structured_calls, texts

__all__ = ["COMMAND_ARGUMENTS", "Source", "ToolCall", "parse_tool_calls"]


def parse_tool_calls(message: object) -> list[ToolCall]:
    """The tool calls in a string, a dict, or an OpenAI or Anthropic message or response, in order.

    Calls in fields of the message count where there are any, since its text is then talk about
    them; else those written in the text, where blocks of bash beside calls in a model's own
    format are talk as well. A call without a name or with broken arguments is left out, one whose
    tool runs no bash, or has nothing to run, has no `command`. Never raises, whatever the message
    is; linear in its length.
    """
    try:
        body = body_of(message)
        structured = structured_calls(body)
        text = "" if structured is not None else "\n".join(texts(body))
    except Exception:  # an object may raise whatever it is asked, its class included
        return []
    if structured is not None:
        return structured
    if not text:
        return []
    # its patterns take 10 ms to compile, which `import agentkv` shall not wait for
    from agentkv.tool_calls.scanner import calls_in_text

    return calls_in_text(text)
