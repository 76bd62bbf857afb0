"""Finds the tool calls in a model's reply: bash in fences, and structured calls with a command.

Pure text and data; understands the shapes of OpenAI and Anthropic replies without importing
either SDK.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

COMMAND_ARGUMENTS = ("command", "cmd", "script")

# A fence of bash, up to a closing fence at least as long. One that is never closed is a reply cut
# short: running half a command is worse than running none.
_BASH_FENCE = re.compile(
    r"^ {0,3}(?P<fence>`{3,})(?:bash|sh|shell)[^\n`]*\n(?P<body>.*?)^ {0,3}(?P=fence)`*[ \t]*$",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_THOUGHTS = re.compile(r"<think>.*?</think>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call: `command` is the bash text as written, None for a tool that runs none."""

    name: str
    command: str | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    call_id: str | None = None
    source: Literal["fenced", "structured"] = "structured"


def parse_tool_calls(message: object) -> list[ToolCall]:
    """The tool calls in a string, a dict, or an OpenAI or Anthropic message or response.

    Structured calls count where there are any; else fenced bash blocks, in order. A list argv is
    shell-joined; blank lines around a command are dropped.
    """
    message = _first_choice(message)
    if isinstance(message, str):
        return _fenced_calls(message)
    structured = list(_structured_calls(message))
    return structured or _fenced_calls("\n".join(_texts(message)))


def _first_choice(message: object) -> object:
    choices = _member(message, "choices")
    if isinstance(choices, Sequence) and choices:
        return _member(choices[0], "message") or _member(choices[0], "text") or ""
    return message


def _fenced_calls(text: str) -> list[ToolCall]:
    bodies = (match["body"] for match in _BASH_FENCE.finditer(_THOUGHTS.sub("", text)))
    return [
        ToolCall("bash", command, {"command": command}, source="fenced")
        for command in map(_strip_blank_lines, bodies)
        if command
    ]


def _structured_calls(message: object) -> Iterator[ToolCall]:
    for call in _items(_member(message, "tool_calls")):
        function = _member(call, "function")
        yield _structured_call(
            _member(function, "name"),
            _member(function, "arguments"),
            _member(call, "id"),
        )
    for block in _blocks(message):
        if _member(block, "type") == "tool_use":
            yield _structured_call(
                _member(block, "name"), _member(block, "input"), _member(block, "id")
            )
        elif _member(block, "type") == "function_call":
            yield _structured_call(
                _member(block, "name"),
                _member(block, "arguments"),
                _member(block, "call_id"),
            )


def _structured_call(name: object, raw_arguments: object, call_id: object) -> ToolCall:
    arguments = _as_mapping(raw_arguments)
    return ToolCall(
        name=str(name or "tool"),
        command=_command_in(arguments),
        arguments=arguments,
        call_id=call_id if isinstance(call_id, str) else None,
    )


def _as_mapping(raw: object) -> Mapping[str, object]:
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError:
            return {}
    return raw if isinstance(raw, Mapping) else {}


def _command_in(arguments: Mapping[str, object]) -> str | None:
    for name in COMMAND_ARGUMENTS:
        value = arguments.get(name)
        if isinstance(value, str):
            return _strip_blank_lines(value)
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return shlex.join(value)
    return None


def _texts(message: object) -> Iterator[str]:
    content = _member(message, "content")
    if isinstance(content, str):
        yield content
    for block in _blocks(message):
        text = _member(block, "text")
        if isinstance(text, str) and _member(block, "type") in ("text", "output_text"):
            yield text
        for part in _items(_member(block, "content")):
            inner = _member(part, "text")
            if isinstance(inner, str) and _member(part, "type") == "output_text":
                yield inner


def _blocks(message: object) -> Iterator[object]:
    """Content blocks of a message (Anthropic, OpenAI) or output items of a response (OpenAI)."""
    yield from _items(_member(message, "content"))
    yield from _items(_member(message, "output"))


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _member(holder: object, name: str) -> object:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _strip_blank_lines(text: str) -> str:
    lines = text.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)
