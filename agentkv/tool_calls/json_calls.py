"""Calls written as JSON: in tags (Hermes, Nemotron), after a token (Llama, Cohere), or bare; and as
ReAct's lines of text.

The scanner calls the readers; other dialects whose arguments are JSON use `calls_in`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentkv.tool_calls.call import Source, ToolCall, call_of
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.thoughts import thought_that_ends

_TAGS = r"(?:(?:longcat_|ifm\|)?+tool_calls?+|function_call|TOOLCALL)"
TAG_OPENER = rf"<{_TAGS}>\s*+(?:```(?:json)?+\s*+)?+(?=[{{\[])"
TOKEN_OPENERS = (
    r"<\|python_tag\|>\s*+(?=[{\[])",
    r"<\|START_ACTION\|>\s*+(?=[{\[])",  # Cohere
    r"functools(?=\[\s{0,20}\{)",  # Phi-4, Firefunction
    r"<\|content_invoke_tool_json\|>\s*+(?=\{)",  # Inkling
)
NAMED_OPENER = r"<\|tools_prefix\|>\s*+(?=\[)"
REACT_OPENER = (
    r"Action:\s*+(?:```(?:json)?+\s*+(?=[{\[])"
    r"|(?P<react_name>[\w.-]{1,100}+)[ \t]*+\n[ \t]*+Action Input:[ \t]*+(?!\s*+```))"
)
_FIRST_KEY = r'"(?:name|type|id|function|arguments|parameters)"\s*+:'
BARE_OPENERS = (rf"\{{\s*+{_FIRST_KEY}", rf"\[\s*+\{{\s*+{_FIRST_KEY}")

_NAMES = ("name", "function", "tool_name", "action")
_IDS = ("id", "tool_call_id")
_ARGUMENTS = ("arguments", "parameters", "args", "action_input")
_BETWEEN_VALUES = re.compile(r"\s*+[;,]?\s*+(?=\{)")
_END_OF_BARE = re.compile(r"[ \t]*+[;,]?[ \t]*+(?=\n|<|\{|\Z)")
_TAG = re.compile(rf"</?{_TAGS}>")
_END_OF_INPUT = re.compile(r"\n[ \t]*+(?:Observation|Thought|Action|Final Answer)[ \t]*+:|\Z")


def read_tag(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Hermes' JSON up to its closing tag; a tag inside a JSON string closes nothing.

    JSON that another opener follows is complete as well; any other is cut off.
    """
    values, end = _values_at(reply, opener.end())
    calls = [call for value in values for call in calls_in(value, "hermes")]
    tag = reply.next(_TAG, end)
    if tag and tag[0].startswith("</"):
        return Reading(tag.end(), calls)
    limit = tag.start() if tag else len(reply.text)
    if values and tag and not reply.text[end:limit].strip():
        return Reading(limit, calls)
    return thought_that_ends(reply, end, limit) or Reading(limit)


def read_token(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read the JSON after a token: Llama's objects between semicolons, others' lists."""
    values, end = _values_at(reply, opener.end())
    return Reading(end, [call for value in values for call in calls_in(value, "llama")])


def read_named(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read Apertus' list of objects whose one key is a tool's name, its value the arguments."""
    values, end = _values_at(reply, opener.end())
    calls = [
        call_of(name, arguments, "llama")
        for value in values
        if isinstance(value, list)
        for entry in value
        if isinstance(entry, dict)
        for name, arguments in entry.items()
        if isinstance(arguments, dict)
    ]
    return Reading(end, calls)


def read_react(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read ReAct's `Action: bash` and `Action Input: ls`, or its JSON, at the start of a line.

    Source: the prompts of ReAct (arXiv 2210.03629); LangChain and Cohere put JSON behind `Action:`.
    """
    if not reply.is_at_line_start(opener.start()):
        return None
    is_json = reply.text.startswith(("{", "["), opener.end())
    decoded = reply.json_at(opener.end()) if is_json else None
    name = opener["react_name"]
    if name is None:
        calls = calls_in(decoded[0], "react") if decoded else []
        return Reading(decoded[1], calls) if decoded else None
    if decoded and isinstance(decoded[0], dict):
        return Reading(decoded[1], [call_of(name, decoded[0], "react")])
    end = reply.next(_END_OF_INPUT, opener.end())
    text = reply.text[opener.end() : end.start() if end else None].strip()
    return Reading(opener.end() + len(text), [call_of(name, {"command": text}, "react")])


def read_bare(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read JSON at the start of a line: Llama's objects, or Mistral's list without its token."""
    if not reply.is_at_line_start(opener.start()):
        return None
    values, end = _values_at(reply, opener.start())
    if not values:
        return None
    if not _END_OF_BARE.match(reply.text, end):
        return Reading(end)
    source: Source = "mistral" if opener[0].startswith("[") else "llama"
    calls = [call for value in values if _is_bare_call(value) for call in calls_in(value, source)]
    return Reading(end, calls)


def calls_in(value: object, source: Source) -> list[ToolCall]:
    """The calls of a JSON value: an object with a name, or a list of such objects."""
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            continue
        call_id = next((entry[key] for key in _IDS if key in entry), None)
        function = _function_of(entry)
        name = next((function[key] for key in _NAMES if function.get(key)), None)
        raw = next((function[key] for key in _ARGUMENTS if key in function), None)
        arguments = arguments_of(raw)
        if isinstance(name, str) and arguments is not None:
            known_id = call_id if isinstance(call_id, str) else None
            calls.append(call_of(name, arguments, source, known_id))
    return calls


def _is_bare_call(value: object) -> bool:
    """Whether every object has arguments, and none is the schema of a tool recited."""
    return all(map(_has_arguments, value if isinstance(value, list) else [value]))


def _has_arguments(entry: object) -> bool:
    if not isinstance(entry, dict) or "description" in (entry := _function_of(entry)):
        return False
    arguments = next((entry[key] for key in _ARGUMENTS if key in entry), None)
    is_schema = isinstance(arguments, dict) and "properties" in arguments
    return arguments is not None and not is_schema


def _function_of(entry: Mapping[str, object]) -> Mapping[str, object]:
    """The object that holds name and arguments: OpenAI nests them in `function`."""
    function = entry.get("function")
    return function if isinstance(function, dict) else entry


def _values_at(reply: ReplyText, start: int) -> tuple[list[object], int]:
    """The JSON values in a row and the index of their end; none if the first is broken."""
    values: list[object] = []
    end = start
    while decoded := reply.json_at(start):
        values.append(decoded[0])
        end = decoded[1]
        if not (gap := _BETWEEN_VALUES.match(reply.text, end)):
            break
        start = gap.end()
    return values, end
