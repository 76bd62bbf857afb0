"""Tool calls that a message carries in fields of its own, and the text that it carries beside.

Understands the shapes of OpenAI's chat, completions and responses, of Anthropic's messages and of
LangChain's, as objects or as dicts, without importing any SDK. Knows nothing of what the text says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from agentkv.tool_calls.call import ToolCall, call_of, is_bash_like

_OWN_FIELDS = ("content", "tool_calls", "function_call", "output")
"""What says that a message holds calls or text itself."""
_MAX_WRAPPERS = 4
_TEXT_PARTS = ("text", "output_text")
_DECODER = json.JSONDecoder(strict=False)


def body_of(message: object) -> object:
    """What holds calls and text: within replies and events the message, else `message` itself."""
    for _ in range(_MAX_WRAPPERS):
        inner = _unwrapped(message)
        if inner is message:
            break
        message = inner
    return message


def _unwrapped(holder: object) -> object:
    """What an HTTP reply, a completion, a choice of it or an event of a stream is about."""
    if isinstance(holder, bytes | bytearray):
        return holder.decode("utf-8", "replace")
    if isinstance(holder, str):
        return holder
    if isinstance(http_text := member(member(holder, "http_response"), "text"), str):
        return arguments_of(http_text) or ""
    if choices := _items(member(holder, "choices")):
        bodies = (member(choices[0], name) for name in ("message", "text"))
        return next((body for body in bodies if body is not None), "")
    if any(member(holder, name) is not None for name in _OWN_FIELDS):
        return holder
    if member(holder, "finish_reason") is not None and member(holder, "message") is None:
        return member(holder, "text") or ""  # a choice of a completion
    inner = (member(holder, name) for name in ("message", "response"))
    return next((body for body in inner if body is not None and not isinstance(body, str)), holder)


def structured_calls(message: object) -> list[ToolCall] | None:
    """The calls in a message's fields, in order; None where it has no such field.

    A call without a name, or whose arguments are no JSON object, is left out.
    """
    entries = [*_items(member(message, "tool_calls")), *_legacy_calls(message)]
    calls = [_chat_call(entry) for entry in entries]
    for block in (message, *_blocks(message)):
        if reader := _BLOCK_READERS.get(_type_of(block)):
            calls.append(reader(block))
    return [call for call in calls if call] if calls else None


def texts(message: object) -> Iterator[str]:
    """What the message says, without its thinking."""
    if isinstance(message, str):
        yield message
    content = member(message, "content")
    if isinstance(content, str):
        yield content
    yield from _part_texts(_blocks(message))
    for block in _blocks(message):
        if _type_of(block) == "message":
            yield from _part_texts(_items(member(block, "content")))


def arguments_of(raw: object) -> Mapping[str, object] | None:
    """Arguments as a mapping: JSON text is decoded, nothing is no arguments; None if broken."""
    if raw is None:
        return {}
    if isinstance(raw, str):
        if not raw.strip():
            return {}
        try:
            raw = _DECODER.decode(raw)
        except (ValueError, RecursionError):
            return None
    return raw if isinstance(raw, Mapping) else None


def member(holder: object, name: str) -> object:
    """A key of a mapping or an attribute of an object; None where there is none.

    Objects of strangers may raise anything on access; a parser that never raises takes that as
    absence too.
    """
    try:
        if isinstance(holder, Mapping):
            return holder.get(name)
        return getattr(holder, name, None)
    except Exception:
        return None


def _call(name: object, raw_arguments: object, call_id: object) -> ToolCall | None:
    arguments = arguments_of(raw_arguments)
    if not isinstance(name, str) or not name or arguments is None:
        return None
    return call_of(name, arguments, "structured", call_id if isinstance(call_id, str) else None)


def _free_text_call(name: object, text: object, call_id: object) -> ToolCall | None:
    """A custom tool takes text instead of JSON: for one that runs bash, the command."""
    key = "command" if isinstance(name, str) and is_bash_like(name) else "input"
    return _call(name, {key: text}, call_id)


def _chat_call(entry: object) -> ToolCall | None:
    if (custom := member(entry, "custom")) is not None:
        return _free_text_call(member(custom, "name"), member(custom, "input"), member(entry, "id"))
    function = member(entry, "function")
    function = entry if function is None else function
    arguments = member(function, "arguments")
    if arguments is None:
        arguments = member(function, "args")  # LangChain
    return _call(member(function, "name"), arguments, member(entry, "id"))


def _legacy_calls(message: object) -> Iterable[object]:
    """The single `function_call` of chat messages before there were `tool_calls`."""
    function = member(message, "function_call")
    return [{"function": function}] if isinstance(member(function, "name"), str) else []


def _tool_use(block: object) -> ToolCall | None:
    return _call(member(block, "name"), member(block, "input"), member(block, "id"))


def _function_call(item: object) -> ToolCall | None:
    return _call(member(item, "name"), member(item, "arguments"), member(item, "call_id"))


def _custom_tool_call(item: object) -> ToolCall | None:
    return _free_text_call(member(item, "name"), member(item, "input"), member(item, "call_id"))


def _local_shell_call(item: object) -> ToolCall | None:
    argv = member(member(item, "action"), "command")
    return _call("local_shell", {"command": argv}, member(item, "call_id"))


def _shell_call(item: object) -> ToolCall | None:
    """OpenAI's hosted shell tool: a list of commands, not of words."""
    commands = member(member(item, "action"), "commands")
    return _call("shell", {"commands": commands}, member(item, "call_id"))


_BLOCK_READERS: Mapping[str | None, Callable[[object], ToolCall | None]] = {
    "tool_use": _tool_use,
    "function_call": _function_call,
    "custom_tool_call": _custom_tool_call,
    "local_shell_call": _local_shell_call,
    "shell_call": _shell_call,
}


def _blocks(message: object) -> Iterator[object]:
    """Content blocks of a message (Anthropic, OpenAI) or output items of a response (OpenAI)."""
    yield from _items(message)
    yield from _items(member(message, "content"))
    yield from _items(member(message, "output"))


def _part_texts(parts: Iterable[object]) -> Iterator[str]:
    for part in parts:
        text = member(part, "text")
        if isinstance(text, str) and _type_of(part) in _TEXT_PARTS:
            yield text


def _type_of(block: object) -> str | None:
    kind = member(block, "type")
    return kind if isinstance(kind, str) else None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
