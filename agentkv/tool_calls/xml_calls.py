"""Calls written as XML-like elements: functions of Qwen3-Coder, invokes of Anthropic, pairs of GLM,
and elements between the marks of MiniMax M3.

These dialects escape nothing, and a command may write a file in the very dialect of its call. So a
value ends at a closing tag that another parameter or the end of the call follows, nothing in a
here-document ends it, and elements that open within it close within it. The scanner calls the
readers.
"""

from __future__ import annotations

import re
from functools import partial

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, ToolCall, call_of, is_bash_like
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText, ShellQuotes, json_or_text
from agentkv.tool_calls.thoughts import thought_that_ends

MAX_UNBALANCED = 3
"""Values per reply whose tags do not pair; after them the first closing tag ends a value."""
_BEFORE_CHARS = 40

# Anthropic, Step 3 and others write invokes with a namespace, DeepSeek V3.2 to V4.1 with a token.
_PREFIX = r"(?:[a-z]{1,20}:|[|\uff5c]{1,2}DSML[|\uff5c]{1,2} ?)?"
_NAME = r"[\"']?(?P<{}>[^\"'<>\n]{{1,200}})[\"']?"
_CALL = rf"{_PREFIX}(?:function|invoke)"
_MARK = r"<\]minimax\[>\["  # what MiniMax M3 writes before each tag, behind a bracket

FUNCTION_OPENER = (
    r"<(?:tool_call>\s*+<)?"
    rf"function(?:=|\s++name\s*+=\s*+){_NAME.format('qwen3_coder_name')}\s*+>"
)
INVOKE_OPENER = rf"<{_PREFIX}invoke\s++name\s*+=\s*+{_NAME.format('invoke_name')}\s*+>"
GLM_OPENER = (
    r"<tool_call>\s*+(?P<glm_name>[\w.:/-]{1,100}+)\s*+(?:<tool_sep>\s*+)?+"  # Hunyuan's separator
    r"(?=<arg_key>|</tool_call>|\Z)"
)
MINIMAX_M3_OPENER = rf"(?:\]{_MARK})<invoke\s++name\s*+=\s*+{_NAME.format('minimax_m3_name')}\s*+>"

_CALL_OPENER = re.compile(rf"<tool_call>|<{_CALL}[=\s]")
_FRESH_CALL = re.compile(
    rf"\n\s*+(?=<{_CALL}[=\s]|<tool_call>\s*+(?:<{_CALL}[=\s]|[\w.:/-]{{1,100}}+\s*+<arg_key>))"
)
# A list of words in JSON; a test of bash has a blank behind its bracket.
_WORDS = re.compile(r"\s*+\[(?:\n\s*+)?\"")
_CDATA = re.compile(r"\A<!\[CDATA\[(.*)\]\]>\Z", re.DOTALL)  # of MiniCPM 5
_JSON_KEY = re.compile(r"DSML(?!.*string=\"true\")", re.DOTALL)  # DeepSeek's, else text
_END_OF_TEXT = re.compile(r"\s*+\Z")
_PARAM = rf"{_PREFIX}param(?:eter)?+"
_PARAMETER = rf"{_PARAM}(?:=|\s++name\s*+=\s*+)"


class _Dialect:
    """The patterns of a dialect.

    `key` is a parameter's name with the tag that opens its value. `tag` is any tag within a value,
    its group one of value, end_of_value, call, end_of_call. `end_of_value` is a tag that ends a
    value by what follows it, with a group `closes` unless the value's own closing tag is missing.
    `after` is what may follow a call whose closing tag is missing.
    """

    def __init__(
        self,
        *,
        key: str,
        parameter: str,
        value: str,
        end_of_value: str,
        call: str,
        end_of_call: str,
        after: str,
        first: str = "<",
    ) -> None:
        """All tags without their `first` sign; `parameter` opens one, `value` its value, and
        `after` are tags around or between calls."""
        after = rf"\s*+(?:\Z|{first}(?:{after}))"
        self.key = re.compile(rf"\s*+{first}{key}")
        self.tag = re.compile(
            rf"{first}(?:(?P<value>{value})|(?P<end_of_value>{end_of_value}(?!['\"`]))"
            rf"|(?P<call>{call})|(?P<end_of_call>{end_of_call}(?!['\"`])))"
        )
        self.end_of_value = re.compile(
            rf"{first}(?:(?P<closes>{end_of_value})"
            rf"(?=\s*+{first}(?:{parameter}|{end_of_call})|{after}|[^{first}]*+\Z)"
            # closing tags that the model forgot
            rf"|(?:(?<=\n{first})|(?=[|\uff5c])){parameter}|{end_of_call}(?={after}))"
        )
        self.end_of_call = re.compile(rf"\s*+{first}{end_of_call}")
        self.after = re.compile(after)
        self.rest = re.compile(rf"\s*+(?:\Z|{first})")


# No element that closes itself, as in files of other dialects.
_INNER_PARAMETER = rf"{_PARAMETER}[^<>\n]{{1,300}}+(?<!/)>"
_ELEMENTS = _Dialect(
    key=rf"{_PARAMETER}{_NAME.format('key')}[^>\n]{{0,100}}>",
    parameter=_INNER_PARAMETER,
    value=_INNER_PARAMETER,
    end_of_value=rf"/{_PARAM}>",
    call=rf"{_CALL}(?:=|\s++name\s*+=)[^<>\n]{{1,300}}+>",
    end_of_call=rf"/{_CALL}>",
    after=rf"/?{_PREFIX}\w{{0,20}}calls?>|{_CALL}[=\s]|[|\uff5c]tool",  # of Step 3
)
_GLM = _Dialect(
    key=r"arg_key>(?P<key>[^<\n]{1,200})</arg_key>\s*+<arg_value>",
    parameter="arg_key>",
    value="arg_value>",
    end_of_value="/arg_value>",
    call=r"tool_call>(?=\s*+[\w.:/-]{1,100}+\s*+<arg_key>)",
    end_of_call="/tool_call>",
    after="/?tool_calls?>",
)
# Elements named after the arguments. Source: vllm/parser/minimax_m3.py of vLLM 0.32.
_MINIMAX_M3 = _Dialect(
    first=r"\]",
    key=rf"{_MARK}<(?P<key>[^<>/\s]{{1,200}}+)>",
    parameter=rf"{_MARK}<[^<>/\s]{{1,200}}+>",
    value=rf"{_MARK}<(?!invoke)[^<>/\s]{{1,200}}+>",
    end_of_value=rf"{_MARK}</(?!invoke|tool_call)[^<>/\s]{{1,200}}+>",
    call=rf"{_MARK}<invoke\s",
    end_of_call=rf"{_MARK}</invoke>",
    after=rf"{_MARK}(?:\Z|<(?:/tool_call>|invoke\s))",
)


def _read_call(
    dialect: _Dialect, source: Source, reply: ReplyText, opener: re.Match[str]
) -> Reading:
    """Read a call up to its closing tag; a key given twice makes it none, as one is misread.

    Without that tag it is a call if it has an argument, and nothing but another call, the end of
    what is around it or the end of the reply follows; or if the reply ends within its arguments, of
    which the unfinished one is left out, as vLLM's parsers do.
    """
    name = opener[f"{source}_name"].strip()
    arguments: dict[str, object] = {}
    start = position = opener.end()
    is_broken = False
    # Llama's form: the arguments as one JSON object
    decoded = reply.json_at(position) if reply.text.startswith("{", position) else None
    if decoded and (given := arguments_of(decoded[0])) is not None:
        arguments, position = dict(given), decoded[1]
    while key := dialect.key.match(reply.text, position):
        end = _end_of_value(reply, key.end(), dialect)
        if abandoned := _abandoned(reply, key.end(), end.start() if end else len(reply.text)):
            return abandoned
        if not end:
            break
        argument = key["key"].strip()
        is_broken |= bool(arguments.get(argument))
        value = reply.text[key.end() : end.start()].removeprefix("\n").removesuffix("\n")
        value = _CDATA.sub(r"\1", value)
        is_list = argument in (*COMMAND_ARGUMENTS, "commands") and is_bash_like(name)
        is_json = _JSON_KEY.search(key[0]) or (is_list and _WORDS.match(value))
        arguments[argument] = json_or_text(value) if is_json else value
        position = end.end() if end["closes"] else end.start()
    closer = dialect.end_of_call.match(reply.text, position)
    end_of_call = closer.end() if closer else position
    is_open = closer is None or (
        opener[0].startswith("<tool_call>") and _END_OF_TEXT.match(reply.text, end_of_call)
    )
    if is_open and reply.opens_unclosed_heredoc(start, position):
        return reply.cut_off
    is_whole = closer or (arguments and dialect.after.match(reply.text, position))
    calls = [call_of(name, arguments, source)] if not is_broken else []
    if is_whole and not key:
        return Reading(end_of_call, calls)
    if dialect.tag.search(reply.text, key.end() if key else position):
        if key is None:
            return Reading(end_of_call)
        # a file that is being written may well show a call
        return _fresh_start(reply, key.end()) if is_bash_like(name) else reply.cut_off
    return _cut_off(reply, dialect, opener, position, calls)


read_function = partial(_read_call, _ELEMENTS, "qwen3_coder")
"""Reads Qwen3-Coder's `<function=bash><parameter=command>`, in `<tool_call>` or without."""
read_invoke = partial(_read_call, _ELEMENTS, "invoke")
"""Reads an invoke of Anthropic, MiniMax M2, Step 3 or DeepSeek, in any element around it."""
read_glm = partial(_read_call, _GLM, "glm")
"""Reads GLM's name and its keys and values in turn, all of them text."""
read_minimax_m3 = partial(_read_call, _MINIMAX_M3, "minimax_m3")


def _cut_off(
    reply: ReplyText, dialect: _Dialect, opener: re.Match[str], position: int, calls: list[ToolCall]
) -> Reading:
    """The reading of a call behind whose last argument no tag follows: it counts, unless it is in
    a thought or quotes, or has prose in place of arguments."""
    if thought := thought_that_ends(reply, position, len(reply.text)):
        return thought
    is_talk = reply.text.endswith(("'", '"', "`"), 0, opener.start())
    if is_talk or not (calls and (calls[0].arguments or dialect.rest.match(reply.text, position))):
        return Reading(position)
    return Reading(len(reply.text), calls)


def _fresh_start(reply: ReplyText, start: int) -> Reading:
    """The reading of a value that is never closed: up to a call that opens on a later line.

    That call counts as a fresh start unless a quote or a here-document of the value hides it.
    """
    fresh = reply.next(_FRESH_CALL, start)
    if fresh is None or reply.opens_unclosed_heredoc(start, fresh.start()):
        return reply.cut_off
    if ShellQuotes(reply, start).hides(fresh.start()):
        return reply.cut_off
    return Reading(fresh.end())


def _abandoned(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought within a value, if a call opens behind it: that call is meant."""
    thought = thought_that_ends(reply, start, end)
    if thought is None or not _CALL_OPENER.search(reply.text, thought.end, end):
        return None
    if reply.heredoc_end_around(start, thought.end - 1) is not None:
        return None
    reply.num_unbalanced += 1
    return thought


def _end_of_value(reply: ReplyText, start: int, dialect: _Dialect) -> re.Match[str] | None:
    """The tag that ends the value at `start`; None if the reply was cut off within it.

    It is the first that leaves no element open. If the call ends before one comes, a closing tag
    was forgotten or an element only mentioned: then it is the first that can end a value.
    """
    if reply.num_unbalanced >= MAX_UNBALANCED:
        return reply.next(dialect.end_of_value, start)
    text, position = reply.text, start
    num_values = num_calls = 1
    while tag := dialect.tag.search(text, position):
        is_end = tag.lastgroup == "end_of_value"
        end = dialect.end_of_value.match(text, tag.start()) if is_end and num_values == 1 else None
        heredoc_end = _heredoc_end_past(reply, position, tag, is_end=end is not None)
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
        elif tag.lastgroup == "value" and tag[0][1] in "|\uff5c":  # no text has DeepSeek's token
            return dialect.end_of_value.match(text, tag.start())
        if num_calls == 0:
            break
    reply.num_unbalanced += 1
    if num_calls:
        return None
    while first := reply.next(dialect.end_of_value, start):
        heredoc_end = _heredoc_end_past(reply, start, first, is_end=True)
        if heredoc_end is None:
            break
        start = heredoc_end
    return first


def _heredoc_end_past(
    reply: ReplyText, start: int, tag: re.Match[str], *, is_end: bool
) -> int | None:
    """The end of the here-document around a tag, None if there is none.

    A tag that ends the value is in none if another call opens before the delimiter, which then
    belongs to that call.
    """
    heredoc_end = reply.heredoc_end_around(start, tag.start())
    if heredoc_end is None or not is_end:
        return heredoc_end
    call = reply.next(_CALL_OPENER, tag.end())
    return None if call and call.start() < heredoc_end else heredoc_end


def _stands_alone(text: str, index: int) -> bool:
    """Whether only blanks, a tag or a diff's sign precede a tag on its line; else it is talk."""
    before = text[max(0, index - _BEFORE_CHARS) : index].rstrip(" \t")
    return before.endswith(("\n", ">", "\n+", "\n-"))
