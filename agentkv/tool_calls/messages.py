"""Reads the tool calls in a message's own fields, and the text that it carries.

Understands the shapes of OpenAI's chat, completions and responses, of Anthropic's messages and of
LangChain's, as objects or as dicts, without importing any SDK. Called by `parse_tool_calls`; knows
nothing of what the text says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentkv.tool_calls.call import ToolCall, call_of, is_bash_like

_OWN_FIELDS = ("content", "tool_calls", "function_call", "output")
"""A message with one of these holds calls or text itself."""
_MAX_WRAPPERS = 4
_MAX_ENCODINGS = 3
_TEXT_PARTS = ("text", "output_text")
_DECODER = json.JSONDecoder(strict=False)


def body_of(message: object) -> object:
    """The message within a reply or an event of a stream; `message` itself if it is neither."""
    for _ in range(_MAX_WRAPPERS):
        inner = _unwrapped(message)
        if inner is message:
            break
        message = inner
    return message


def _unwrapped(holder: object) -> object:
    """The content of an HTTP reply, a completion, one of its choices or an event of a stream."""
    if isinstance(holder, bytes | bytearray):
        return holder.decode("utf-8", "replace")
    if isinstance(holder, str):
        return holder
    if isinstance(http_text := _member(_member(holder, "http_response"), "text"), str):
        return arguments_of(http_text) or ""
    if choices := _items(_member(holder, "choices")):
        bodies = (_member(choices[0], name) for name in ("message", "text"))
        return next((body for body in bodies if body is not None), "")
    if any(_member(holder, name) is not None for name in _OWN_FIELDS):
        return holder
    if _member(holder, "finish_reason") is not None and _member(holder, "message") is None:
        return _member(holder, "text") or ""  # a choice of a completion
    inner = (_member(holder, name) for name in ("message", "response"))
    return next((body for body in inner if body is not None and not isinstance(body, str)), holder)


def structured_calls(message: object) -> list[ToolCall] | None:
    """The calls in a message's fields, in order; None if it has no such field.

    A call without a name, or whose arguments are not a JSON object, is left out.
    """
    calls = [_chat_call(entry) for entry in _items(_member(message, "tool_calls"))]
    # chat messages had a single `function_call` before they had `tool_calls`
    legacy = _member(message, "function_call")
    if isinstance(_member(legacy, "name"), str):
        calls.append(_chat_call({"function": legacy}))
    for block in (message, *_blocks(message)):
        if reader := _BLOCK_READERS.get(_type_of(block)):
            calls.append(reader(block))
    return [call for call in calls if call] if calls else None


def texts(message: object) -> Iterator[str]:
    """The texts of a message, without its thinking."""
    if isinstance(message, str):
        yield message
    content = _member(message, "content")
    if isinstance(content, str):
        yield content
    yield from _part_texts(_blocks(message))
    for block in _blocks(message):
        if _type_of(block) == "message":
            yield from _part_texts(_items(_member(block, "content")))


def arguments_of(raw: object) -> Mapping[str, object] | None:
    """Arguments as a mapping: JSON text is decoded, absent ones are empty; None if broken.

    Models write JSON in JSON, and Python's quotes.
    """
    if raw is None:
        return {}
    for _ in range(_MAX_ENCODINGS):
        if isinstance(raw, str):
            raw = _decoded(raw) if raw.strip() else {}
    return raw if isinstance(raw, Mapping) else None


def _decoded(text: str) -> object:
    """The value of JSON or of a dict in Python; None if it is neither."""
    try:
        return _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        from agentkv.tool_calls.pythonic_calls import literal_of  # compiles patterns

        return literal_of(text)


def _member(holder: object, name: str) -> object:
    """A key of a mapping or an attribute of an object, None if it is absent or its access raises.

    Users' objects may raise anything on access, and the parser never raises.
    """
    try:
        if isinstance(holder, Mapping):
            return holder.get(name)
        return getattr(holder, name, None)
    except Exception:
        return None


def _chat_call(entry: object) -> ToolCall | None:
    if (custom := _member(entry, "custom")) is not None:
        name = _member(custom, "name")
        return _free_text_call(name, _member(custom, "input"), _member(entry, "id"))
    function = _member(entry, "function")
    function = entry if function is None else function
    arguments = _member(function, "arguments")
    if arguments is None:
        arguments = _member(function, "args")  # LangChain
    return _call(_member(function, "name"), arguments, _member(entry, "id"))


def _call(name: object, raw_arguments: object, call_id: object) -> ToolCall | None:
    arguments = arguments_of(raw_arguments)
    if not isinstance(name, str) or not name or arguments is None:
        return None
    return call_of(name, arguments, "structured", call_id if isinstance(call_id, str) else None)


def _free_text_call(name: object, text: object, call_id: object) -> ToolCall | None:
    """A call of a custom tool, which takes text in place of JSON: a command if it runs bash."""
    key = "command" if isinstance(name, str) and is_bash_like(name) else "input"
    return _call(name, {key: text}, call_id)


def _members(block: object, *names: str) -> tuple[object, ...]:
    return tuple(_member(block, name) for name in names)


def _action(item: object, name: str) -> dict[str, object]:
    """The arguments of OpenAI's hosted shells, which stand in the item's `action`."""
    return {name: _member(_member(item, "action"), name)}


_BLOCK_READERS: Mapping[str | None, Callable[[object], ToolCall | None]] = {
    "tool_use": lambda block: _call(*_members(block, "name", "input", "id")),
    "function_call": lambda item: _call(*_members(item, "name", "arguments", "call_id")),
    "custom_tool_call": lambda item: _free_text_call(*_members(item, "name", "input", "call_id")),
    # a list of words
    "local_shell_call": lambda item: _call(
        "local_shell", _action(item, "command"), _member(item, "call_id")
    ),
    # a list of commands
    "shell_call": lambda item: _call("shell", _action(item, "commands"), _member(item, "call_id")),
}


def _blocks(message: object) -> Iterator[object]:
    """Content blocks of a message (Anthropic, OpenAI) or output items of a response (OpenAI)."""
    yield from _items(message)
    yield from _items(_member(message, "content"))
    yield from _items(_member(message, "output"))


def _part_texts(parts: Iterable[object]) -> Iterator[str]:
    for part in parts:
        text = _member(part, "text")
        if isinstance(text, str) and _type_of(part) in _TEXT_PARTS:
            yield text


def _type_of(block: object) -> str | None:
    kind = _member(block, "type")
    return kind if isinstance(kind, str) else None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
