"""Calls written as JSON: in tags (Hermes, Nemotron), after a token (Llama, Cohere), or bare (also
Terminus'); and as ReAct's lines of text.

The scanner calls the readers; other dialects whose arguments are JSON use `calls_in`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agentkv.tool_calls.call import Source, ToolCall, call_of
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.pythonic_calls import literal_of
from agentkv.tool_calls.reply_text import Reading, ReplyText, json_or_text
from agentkv.tool_calls.thoughts import ends_a_sentence, thought_that_ends

_TAGS = r"(?:(?:longcat|dots)_|ifm[|])?+(?:tool_calls?+|function_call|TOOLCALL)"
TAG_OPENER = rf"<{_TAGS}>\s*+(?:```(?:json)?+\s*+)?+(?=[{{\[])"
TOKEN_OPENERS = (
    r"<\|(?:python_tag|tool_call)\|>\s*+(?=[{\[])",  # Llama, Granite 3.0
    r"<\|tools_prefix\|>\s*+(?=\[)",  # Apertus
    r"<\|START_ACTION\|>\s*+(?=[{\[])",  # Cohere
    r"functools(?=\[\s{0,20}\{)",  # Phi-4, Firefunction
    r"<\|content_invoke_tool_json\|>\s*+(?=\{)",  # Inkling
    r"<\|action_start\|>\s*+<\|plugin\|>\s*+(?=\{)",  # InternLM
    *(r"<\|function_call\|>\s*+(?=\{)", r"function call<\|role_sep\|>\s*+(?=\{)"),  # GigaChat
    r"\[TOOL_CALLS\]\s*+(?=[\[{])",  # Mistral up to v10
)
REACT_OPENER = (
    r"Action:\s*+(?:```(?:json)?+\s*+(?=[{\[])"
    r"|(?P<react_name>[\w.-]{1,100}+)[ \t]*+\n[ \t]*+Action Input:[ \t]*+(?!\s*+```))"
)
_FIRST_KEY = (
    r'"(?:name|type|id|function|arguments|parameters'
    r'|analysis|state_analysis|plan|explanation|commands)"\s*+:'  # Terminus
)
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

    JSON that another opener or the end of the reply follows is complete as well, and a list, as
    Granite 3.1 closes none; any other is cut off.
    """
    values, end = _values_at(reply, opener.end())
    tag = reply.next(_TAG, end)
    limit = tag.start() if tag else len(reply.text)
    if not values and (value := literal_of(reply.text[end:limit].strip(" \n`"))):
        values, end = [value], limit
    calls = [call for value in values for call in calls_in(value, "hermes")]
    if tag and tag[0].startswith("</"):
        return Reading(tag.end(), calls)
    if values and (isinstance(values[0], list) or not reply.text[end:limit].strip()):
        return Reading(limit, calls)
    return thought_that_ends(reply, end, limit) or Reading(limit)


def read_token(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read the JSON after a token: Llama's objects between semicolons, others' lists; in Apertus'
    the one key of each object is the tool's name."""
    values, end = _values_at(reply, opener.end())
    if "tools_prefix" in opener[0] and values and isinstance(values[0], list):
        entries = [item for entry in values[0] if isinstance(entry, dict) for item in entry.items()]
        values = [{"name": name, "arguments": arguments} for name, arguments in entries]
    source: Source = "mistral" if opener[0].startswith("[") else "llama"
    return Reading(end, [call for value in values for call in calls_in(value, source)])


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
    """Read JSON at the start of a line: Llama's objects, or Mistral's list without its token.

    Behind a sentence it is a call if it ends the reply.
    """
    is_line = reply.is_at_line_start(opener.start())
    if not is_line and not ends_a_sentence(reply.text, opener.start()):
        return None
    values, end = _values_at(reply, opener.start())
    if not values or not (is_line or end == len(reply.text)):
        return None
    if not _END_OF_BARE.match(reply.text, end):
        return Reading(end)
    source: Source = "mistral" if opener[0].startswith("[") else "llama"
    calls = [call for value in values if _is_bare_call(value) for call in calls_in(value, source)]
    return Reading(end, calls)


def calls_of_answer(text: str) -> list[ToolCall]:
    """The calls of a text that is JSON: a list of calls, as xLAM writes, or Terminus' object."""
    value = json_or_text(text)
    is_typing = isinstance(value, dict) and _keystrokes(value)
    is_list = isinstance(value, list) and _is_bare_call(value)
    return calls_in(value, "llama") if is_typing or is_list else []


def calls_in(value: object, source: Source) -> list[ToolCall]:
    """The calls of a JSON value: an object with a name, or a list of such objects."""
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not isinstance(entry, dict):
            continue
        calls += [call_of("terminal", keys, "terminus") for keys in _keystrokes(entry)]
        call_id = next((entry[key] for key in _IDS if key in entry), None)
        function = _function_of(entry)
        name = next((function[key] for key in _NAMES if function.get(key)), None)
        raw = next((function[key] for key in _ARGUMENTS if key in function), None)
        arguments = arguments_of(raw)
        if isinstance(name, str) and arguments is not None:
            known_id = call_id if isinstance(call_id, str) else None
            calls.append(call_of(name, arguments, source, known_id))
    return calls


def _keystrokes(entry: Mapping[str, object]) -> list[dict[str, object]]:
    """What Terminus types into its terminal, in turn. Source: the prompts of terminal-bench."""
    commands = entry.get("commands")
    typed = commands if isinstance(commands, list) else []
    return [keys for keys in typed if isinstance(keys, dict) and "keystrokes" in keys]


def _is_bare_call(value: object) -> bool:
    """Whether every object has arguments, and none is the schema of a tool recited."""
    return all(map(_has_arguments, value if isinstance(value, list) else [value]))


def _has_arguments(entry: object) -> bool:
    if not isinstance(entry, dict) or "description" in (entry := _function_of(entry)):
        return False
    if _keystrokes(entry):
        return True
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
