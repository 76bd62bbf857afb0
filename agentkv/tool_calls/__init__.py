"""Finds the tool calls in a model's reply, in fields of the message or written in its text.

`parse_tool_calls` is the door; clients, agents and the vLLM plugin call it. Knows how models write
calls, and nothing of jobs, servers or durations.
"""

from __future__ import annotations

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, ToolCall
from agentkv.tool_calls.messages import body_of, structured_calls, texts

__all__ = ["COMMAND_ARGUMENTS", "Source", "ToolCall", "parse_tool_calls"]


def parse_tool_calls(message: object) -> list[ToolCall]:
    """Return the tool calls of a string, a dict, or an OpenAI or Anthropic message or response.

    Calls in fields of the message win over its text, which is then talk about them. In text, calls
    in a model's own format win over blocks of bash. A call without a name or with broken arguments
    is left out; `command` is None if its tool runs no bash or has nothing to run. Never raises,
    for any message; linear in its length.
    """
    structured, text = None, ""
    if type(message) is str:
        text = message
    else:
        try:
            body = body_of(message)
            structured = structured_calls(body)
            text = "" if structured is not None else "\n".join(texts(body))
        except Exception:  # an object may raise at any access, even when asked for its class
            return []
    if structured is not None or not text:
        return structured or []
    # its patterns take 10 ms to compile, which `import agentkv` shall not wait for
    from agentkv.tool_calls.scanner import calls_in_text

    return calls_in_text(text)
