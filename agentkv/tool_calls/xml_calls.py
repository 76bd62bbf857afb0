"""Calls written as elements: Qwen3-Coder's functions, Anthropic's invokes, GLM's keys and values.

Values are text and end at a closing tag that another parameter or the end of the call follows, so
that a command may contain the tag itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, call_of, is_bash_like
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import (
    Reading,
    ReplyText,
    ShellQuotes,
    end_of_heredoc_around,
    opens_unclosed_heredoc,
)
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

_CALL_OPENER = re.compile(rf"<tool_call>|<{_CALL}[=\s]")
_FRESH_CALL = re.compile(
    rf"\n\s*+(?=<{_CALL}[=\s]|<tool_call>\s*+(?:<{_CALL}[=\s]|[\w.:/-]{{1,100}}+\s*+<arg_key>))"
)
# A test of bash has a blank behind its bracket.
_WORDS = re.compile(r"\s*+\[(?:\n\s*+)?\"")
_END_OF_WRAPPER = re.compile(r"\s*+\Z")
_PARAMETER = rf"{_PREFIX}parameter(?:=|\s++name\s*+=\s*+)"
# No element that closes itself, as in files of other dialects.
_INNER_PARAMETER = rf"{_PARAMETER}[^<>\n]{{1,300}}+(?<!/)>"


@dataclass(frozen=True, slots=True)
class ValueTags:
    """The tags of a dialect.

    Groups of `tag` say what one is: call, value, end_of_value or end_of_call. `end` is a tag that
    ends a value by what follows, with a group `closes` unless it is one where the value's own was
    forgotten.
    """

    tag: re.Pattern[str]
    end: re.Pattern[str]
    call: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a key is written, with the tag that opens its value; its tags; and the end of a call."""

    key: re.Pattern[str]
    tags: ValueTags
    end_of_call: re.Pattern[str]


_ELEMENTS = _Dialect(
    re.compile(rf"\s*+<{_PARAMETER}{_NAME.format('key')}(?P<typing>[^>\n]{{0,100}})>"),
    ValueTags(
        re.compile(
            rf"<(?:(?P<value>{_INNER_PARAMETER})"
            rf"|(?P<end_of_value>/{_PREFIX}parameter>(?!['\"`]))"
            rf"|(?P<call>{_CALL}(?:=|\s++name\s*+=)[^<>\n]{{1,300}}+>)"
            rf"|(?P<end_of_call>/{_CALL}>(?!['\"`])))"
        ),
        re.compile(
            rf"<(?:(?P<closes>/{_PREFIX}parameter>)(?=\s*+(?:<{_PREFIX}parameter[=\s]|</{_CALL}>))"
            # a closing tag that the model forgot
            rf"|(?<=\n<){_INNER_PARAMETER}"
            rf"|/{_CALL}>(?=\s*+(?:</?(?:\w{{1,20}}:)?tool_call|<{_CALL}[=\s]|</\S*+function_calls"
            r"|\Z)))"
        ),
        _CALL_OPENER,
    ),
    re.compile(rf"\s*+</{_CALL}>"),
)
_GLM = _Dialect(
    re.compile(r"\s*+<arg_key>(?P<key>[^<\n]{1,200})</arg_key>\s*+<arg_value>(?P<typing>)"),
    ValueTags(
        re.compile(
            r"<(?:(?P<value>arg_value>)|(?P<end_of_value>/arg_value>(?!['\"`]))"
            r"|(?P<call>tool_call>(?=\s*+[\w.:/-]{1,100}+\s*+<arg_key>))"
            r"|(?P<end_of_call>/tool_call>(?!['\"`])))"
        ),
        re.compile(
            r"<(?:(?P<closes>/arg_value>)(?=\s*+(?:<arg_key>|</tool_call>))"
            r"|/tool_call>(?=\s*+(?:<tool_call>|\Z)))"
        ),
        _CALL_OPENER,
    ),
    re.compile(r"\s*+</tool_call>"),
)


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
    return _read_call(reply, opener, opener["glm_name"], "glm", _GLM)


def _read_call(
    reply: ReplyText,
    opener: re.Match[str],
    name: str,
    source: Source,
    dialect: _Dialect = _ELEMENTS,
) -> Reading:
    """A call up to its closing tag; none if it has one key twice, since one of them is misread."""
    arguments: dict[str, object] = {}
    position = opener.end()
    is_broken = False
    if decoded := _json_arguments(reply, position):
        arguments, position = decoded
    while key := dialect.key.match(reply.text, position):
        end = end_of_value(reply, key.end(), dialect.tags)
        if abandoned := _abandoned(reply, key.end(), end.start() if end else len(reply.text)):
            return abandoned
        if not end:
            # a file that is being written may well show a call
            return _cut_off(reply, key.end()) if is_bash_like(name.strip()) else reply.cut_off
        argument = key["key"].strip()
        is_broken |= bool(arguments.get(argument))
        value = _line_trimmed(reply.text[key.end() : end.start()])
        is_command = argument in COMMAND_ARGUMENTS and is_bash_like(name.strip())
        arguments[argument] = _typed(value, key["typing"], is_command=is_command)
        position = end.end() if end["closes"] else end.start()
    if not (closer := dialect.end_of_call.match(reply.text, position)):
        return Reading(position)
    call = call_of(name.strip(), arguments, source)
    return Reading(closer.end(), () if is_broken else [call])


def _cut_off(reply: ReplyText, start: int) -> Reading:
    """Of a value that is never closed: a call that opens on a line behind it was begun afresh.

    Unless the value hides it, in a quote or a here-document, even one without an end.
    """
    fresh = reply.next(_FRESH_CALL, start)
    if fresh is None or opens_unclosed_heredoc(reply, start, fresh.start()):
        return reply.cut_off
    if ShellQuotes(reply, start).hides(fresh.start()):
        return reply.cut_off
    return Reading(fresh.end())


def _abandoned(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought within a value, if a call opens behind it: that one is meant."""
    thought = thought_that_ends(reply, start, end)
    if thought is None or not _CALL_OPENER.search(reply.text, thought.end, end):
        return None
    if end_of_heredoc_around(reply, start, thought.end - 1) is not None:
        return None
    reply.num_unbalanced += 1
    return thought


def _json_arguments(reply: ReplyText, start: int) -> tuple[dict[str, object], int] | None:
    """Llama's form: the arguments as one JSON object inside the element."""
    if not reply.text.startswith("{", start) or not (decoded := reply.json_at(start)):
        return None
    arguments = arguments_of(decoded[0])
    return (dict(arguments), decoded[1]) if arguments is not None else None


def _typed(value: str, typing: str, *, is_command: bool) -> object:
    """DeepSeek V3.2 says which values are JSON; others are text, but a command a list of words."""
    if 'string="false"' not in typing and not (is_command and _WORDS.match(value)):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _line_trimmed(value: str) -> str:
    """A value without the line ends that set it off from its tags."""
    return value.removeprefix("\n").removesuffix("\n")


# Where a value written as an element ends, in dialects that escape nothing.
# A command may write a file in the very dialect of its call. So what a here-document
# holds ends no
# value, and elements that open within the value close within it.

MAX_UNBALANCED = 3
"""Values per reply whose tags are counted in vain; after them the first closing tag counts."""
_BEFORE_CHARS = 40


def end_of_value(reply: ReplyText, start: int, tags: ValueTags) -> re.Match[str] | None:
    """The tag that ends the value from `start` on; None if the reply was cut off within it.

    It is the first that leaves no element open. Where the call ends before one comes, a closing
    tag was forgotten or an element only spoken of: then the first that can end a value.
    """
    if reply.num_unbalanced >= MAX_UNBALANCED:
        return reply.next(tags.end, start)
    text, position = reply.text, start
    num_values = num_calls = 1
    while tag := tags.tag.search(text, position):
        is_end = tag.lastgroup == "end_of_value"
        end = tags.end.match(text, tag.start()) if is_end and num_values == 1 else None
        heredoc_end = _heredoc_end_past(reply, position, tag, tags, is_end=end is not None)
        position = heredoc_end or tag.end()
        if heredoc_end is not None:
            continue
        if end:
            return end
        if is_end:
            num_values = max(1, num_values - 1)
        elif tag.lastgroup == "end_of_call":
            num_calls -= 1
        elif _stands_alone(text, tag.start()):
            num_values += tag.lastgroup == "value"
            num_calls += tag.lastgroup == "call"
        if num_calls == 0:
            break
    reply.num_unbalanced += 1
    return _first_end(reply, start, tags) if num_calls == 0 else None


def _first_end(reply: ReplyText, start: int, tags: ValueTags) -> re.Match[str] | None:
    """The first tag outside of here-documents that can end a value."""
    while end := reply.next(tags.end, start):
        heredoc_end = _heredoc_end_past(reply, start, end, tags, is_end=True)
        if heredoc_end is None:
            return end
        start = heredoc_end
    return None


def _heredoc_end_past(
    reply: ReplyText, start: int, tag: re.Match[str], tags: ValueTags, *, is_end: bool
) -> int | None:
    """Where the here-document around a tag ends; None if there is none.

    Nor if the tag ends the value and another call opens before the delimiter comes: then the
    delimiter belongs to that one.
    """
    heredoc_end = end_of_heredoc_around(reply, start, tag.start())
    if heredoc_end is None or not is_end:
        return heredoc_end
    call = reply.next(tags.call, tag.end())
    return None if call and call.start() < heredoc_end else heredoc_end


def _stands_alone(text: str, index: int) -> bool:
    """Whether only blanks, a tag or a diff's sign are before a tag on its line: else it is talk."""
    before = text[max(0, index - _BEFORE_CHARS) : index].rstrip(" \t")
    return before.endswith(("\n", ">", "\n+", "\n-"))
