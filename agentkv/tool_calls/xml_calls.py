"""Calls written as elements: Qwen3-Coder's functions, Anthropic's invokes, GLM's keys and values.

Values are text and end at a closing tag that another parameter or the end of the call follows, so
that a command may contain the tag itself. None of the formats escapes anything.
"""

from __future__ import annotations

import json
import re

from agentkv.tool_calls.call import Source, call_of
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.thoughts import thought_that_ends

# DeepSeek V3.2 writes invokes with a prefix of its own, Anthropic with antml.
_PREFIX = r"(?:antml:|[|\uff5c]DSML[|\uff5c])?"
_NAME = r"[\"']?(?P<{}>[^\"'<>\n]{{1,200}})[\"']?"
_CALL = rf"{_PREFIX}(?:function|invoke)"

FUNCTION_OPENER = (
    r"<(?:tool_call>\s*+<)?"
    rf"function(?:=|\s++name\s*+=\s*+){_NAME.format('function_name')}\s*+>"
)
INVOKE_OPENER = rf"<{_PREFIX}invoke\s++name\s*+=\s*+{_NAME.format('invoke_name')}\s*+>"
GLM_OPENER = r"<tool_call>\s*+(?P<glm_name>[\w.:/-]{1,100}+)\s*+(?=<arg_key>|</tool_call>)"

_PARAMETER = re.compile(
    rf"\s*+<{_PREFIX}parameter(?:=|\s++name\s*+=\s*+){_NAME.format('key')}(?P<typing>[^>\n]{{0,100}})>"
)
_END_OF_VALUE = re.compile(
    rf"<(?:(?P<closes>/{_PREFIX}parameter>)(?=\s*+(?:<{_PREFIX}parameter[=\s]|</{_CALL}>))"
    # a closing tag that the model forgot
    rf"|(?<=\n<){_PREFIX}parameter[=\s]"
    rf"|/{_CALL}>(?=\s*+(?:</?(?:\w{{1,20}}:)?tool_call|<{_CALL}[=\s]|</\S*+function_calls|\Z)))"
)
_END_OF_CALL = re.compile(rf"\s*+</{_CALL}>")
_END_OF_WRAPPER = re.compile(r"\s*+\Z")
_CALL_OPENER = re.compile(rf"<tool_call>|<{_CALL}[=\s]")
_GLM_KEY = re.compile(r"\s*+<arg_key>([^<\n]{1,200})</arg_key>\s*+<arg_value>")
_GLM_END_OF_VALUE = re.compile(r"</arg_value>(?=\s*+(?:<arg_key>|</tool_call>))")
_GLM_END_OF_CALL = re.compile(r"\s*+</tool_call>")


def read_function(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Qwen3-Coder: `<function=bash><parameter=command>`, in `<tool_call>` or without."""
    reading = _read_call(reply, opener, opener["function_name"], "qwen3_coder")
    is_wrapped = opener[0].startswith("<tool_call>")
    is_open = is_wrapped and _END_OF_WRAPPER.match(reply.text, reading.end)
    return reply.cut_off if is_open else reading


def read_invoke(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Anthropic, also MiniMax and DeepSeek V3.2; the element around invokes does not matter."""
    return _read_call(reply, opener, opener["invoke_name"], "invoke")


def read_glm(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """GLM: a name, then keys and values by turns, all of them text to us."""
    arguments: dict[str, object] = {}
    position = opener.end()
    while key := _GLM_KEY.match(reply.text, position):
        if not (end := reply.next(_GLM_END_OF_VALUE, key.end())):
            return reply.cut_off
        if abandoned := _abandoned(reply, key.end(), end.start()):
            return abandoned
        arguments[key[1].strip()] = _line_trimmed(reply.text[key.end() : end.start()])
        position = end.end()
    if not (closer := _GLM_END_OF_CALL.match(reply.text, position)):
        return reply.cut_off
    return Reading(closer.end(), [call_of(opener["glm_name"], arguments, "glm")])


def _read_call(reply: ReplyText, opener: re.Match[str], name: str, source: Source) -> Reading:
    arguments: dict[str, object] = {}
    position = opener.end()
    if decoded := _json_arguments(reply, position):
        arguments, position = decoded
    while key := _PARAMETER.match(reply.text, position):
        if not (end := reply.next(_END_OF_VALUE, key.end())):
            return reply.cut_off
        if abandoned := _abandoned(reply, key.end(), end.start()):
            return abandoned
        value = _line_trimmed(reply.text[key.end() : end.start()])
        arguments[key["key"].strip()] = _typed(value, key["typing"])
        position = end.end() if end["closes"] else end.start()
    if not (closer := _END_OF_CALL.match(reply.text, position)):
        return Reading(position)
    return Reading(closer.end(), [call_of(name.strip(), arguments, source)])


def _abandoned(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought within a value, if a call opens behind it: that one is meant."""
    thought = thought_that_ends(reply, start, end)
    return thought if thought and _CALL_OPENER.search(reply.text, thought.end, end) else None


def _json_arguments(reply: ReplyText, start: int) -> tuple[dict[str, object], int] | None:
    """Llama's form: the arguments as one JSON object inside the element."""
    if not reply.text.startswith("{", start) or not (decoded := reply.json_at(start)):
        return None
    arguments = arguments_of(decoded[0])
    return (dict(arguments), decoded[1]) if arguments is not None else None


def _typed(value: str, typing: str) -> object:
    """DeepSeek V3.2 says which values are JSON; all others are text."""
    if 'string="false"' not in typing:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _line_trimmed(value: str) -> str:
    """A value without the line ends that set it off from its tags."""
    return value.removeprefix("\n").removesuffix("\n")
