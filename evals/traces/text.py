"""What readers of logs share: time stamps, the text of contents, commands, estimates of tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from agentkv import parse_tool_calls

CHARS_PER_TOKEN = 4.0
"""Characters a token, where a log has no usage: chosen."""
_NO_TEXT = frozenset({"type", "id", "tool_use_id", "signature", "data", "cache_control", "role"})


def estimated_tokens(content: object) -> int:
    """Tokens of a message's content whose log has no usage."""
    return round(len(text_of(content)) / CHARS_PER_TOKEN)


def seconds_of(stamp: object) -> float:
    """Unix seconds of an ISO 8601 stamp (without a zone: UTC), or of a number of seconds.

    Raises ValueError for anything else.
    """
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return float(stamp)
    moment = datetime.fromisoformat(str(stamp))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(content: object) -> str:
    """All text within a message's content: a string, blocks, or blocks within blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(map(text_of, content))
    if isinstance(content, Mapping):
        return "".join(text_of(value) for key, value in content.items() if key not in _NO_TEXT)
    return ""


def command_of(name: object, arguments: Any) -> str:
    """The bash command of a tool call, else the tool's name."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": str(name or "tool"), "arguments": text}
    calls = parse_tool_calls(
        {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
    )
    return next((call.command for call in calls if call.command), None) or function["name"]
