"""Finds what a finished turn's reply runs: from its tokens to a command.

Knows nothing of jobs, pins or vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentkv.tool_calls import parse_tool_calls

MAX_REPLY_TOKENS = 8192
"""Tokens of a reply that are decoded, from its end, where the tool calls are."""
MAX_REPLY_CHARS = 4 * MAX_REPLY_TOKENS
"""Characters of it that are parsed, from its end: an ordinary token has four."""

Decode = Callable[[list[int]], str]
"""Makes text of tokens, special ones included."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The last tokens of a reply; `stop_token_id` is the one that ended it, None if none did."""

    request_id: str
    token_ids: list[int]
    stop_token_id: int | None = None


def reply_text(reply: Reply, decode: Decode) -> str:
    """The end of a reply as text.

    A stop token is text too, since some dialects end a call with one; it gets a line of its own,
    since after a closing fence nothing else may stand.
    """
    text = decode(reply.token_ids)
    if reply.stop_token_id is not None:
        text += "\n" + decode([reply.stop_token_id])
    return text[-MAX_REPLY_CHARS:]


def command_in(text: str) -> str | None:
    """The commands of a reply's tool calls, one a line; a tool that runs none gives its name.

    Half of a surrogate pair, which JSON may spell (`\\ud83d`), becomes a question mark: no message
    can carry it.
    """
    calls = (call.command or call.name for call in parse_tool_calls(text))
    command = "\n".join(call for call in calls if call)
    return command.encode(errors="replace").decode() or None
