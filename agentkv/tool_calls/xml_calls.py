"""Calls written as XML-like elements: functions of Qwen3-Coder, invokes of Anthropic, pairs of GLM,
and elements between the marks of MiniMax M3.

These dialects escape nothing. So a value ends at a closing tag that another parameter or the end
of the call follows, and nothing in a here-document ends it. The scanner calls the readers.
"""

from __future__ import annotations

import re
from functools import partial

from agentkv.tool_calls.call import COMMAND_ARGUMENTS, Source, call_of, is_bash_like
from agentkv.tool_calls.messages import arguments_of
from agentkv.tool_calls.reply_text import Reading, ReplyText, json_or_text
from agentkv.tool_calls.thoughts import thought_that_ends

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
MINIMAX_M3_OPENER = rf"\]{_MARK}<invoke\s++name\s*+=\s*+{_NAME.format('minimax_m3_name')}\s*+>"

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

    `key` is a parameter's name with the tag that opens its value. `end_of_value` is a tag that ends
    a value by what follows it, with a group `closes` unless the value's own closing tag is missing.
    `after` is what may follow a call whose closing tag is missing.
    """

    def __init__(
        self,
        *,
        key: str,
        parameter: str,
        end_of_value: str,
        end_of_call: str,
        after: str,
        first: str = "<",
    ) -> None:
        """All tags without their `first` sign; `parameter` opens one, and `after` are tags around
        or between calls."""
        after = rf"\s*+(?:\Z|{first}(?:{after}))"
        self.key = re.compile(rf"\s*+{first}{key}")
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
    end_of_value=rf"/{_PARAM}>",
    end_of_call=rf"/{_CALL}>",
    after=rf"/?{_PREFIX}\w{{0,20}}calls?>|{_CALL}[=\s]|[|\uff5c]tool",  # of Step 3
)
_GLM = _Dialect(
    key=r"arg_key>(?P<key>[^<\n]{1,200})</arg_key>\s*+<arg_value>",
    parameter="arg_key>",
    end_of_value="/arg_value>",
    end_of_call="/tool_call>",
    after="/?tool_calls?>",
)
# Elements named after the arguments. Source: vllm/parser/minimax_m3.py of vLLM 0.32.
_MINIMAX_M3 = _Dialect(
    first=r"\]",
    key=rf"{_MARK}<(?P<key>[^<>/\s]{{1,200}}+)>",
    parameter=rf"{_MARK}<[^<>/\s]{{1,200}}+>",
    end_of_value=rf"{_MARK}</(?!invoke|tool_call)[^<>/\s]{{1,200}}+>",
    end_of_call=rf"{_MARK}</invoke>",
    after=rf"{_MARK}(?:\Z|<(?:/tool_call>|invoke\s))",
)


def _read_call(
    dialect: _Dialect, source: Source, reply: ReplyText, opener: re.Match[str]
) -> Reading:
    """Read a call up to its closing tag; a key given twice makes it none, as one is misread.

    Without that tag it is a call if it has an argument, and nothing but another call, the end of
    what is around it or the end of the reply follows; or if the reply ends within its arguments, of
    which the unfinished one is left out, as vLLM's parsers do. In a thought it is none.
    """
    text, name = reply.text, opener[f"{source}_name"].strip()
    arguments: dict[str, object] = {}
    start = position = opener.end()
    is_broken = False
    # Llama's form: the arguments as one JSON object
    decoded = reply.json_at(position) if text.startswith("{", position) else None
    if decoded and (given := arguments_of(decoded[0])) is not None:
        arguments, position = dict(given), decoded[1]
    while key := dialect.key.match(text, position):
        end = reply.next_outside_heredocs(dialect.end_of_value, key.end())
        if thought := _thought_before_call(reply, key.end(), end.start() if end else len(text)):
            return thought
        if not end:
            break
        if not end["closes"] and reply.opens_unclosed_heredoc(key.end(), end.start()):
            return reply.cut_off
        argument = key["key"].strip()
        is_broken |= bool(arguments.get(argument))
        value = text[key.end() : end.start()].removeprefix("\n").removesuffix("\n")
        value = _CDATA.sub(r"\1", value)
        is_list = argument in (*COMMAND_ARGUMENTS, "commands") and is_bash_like(name)
        is_json = _JSON_KEY.search(key[0]) or (is_list and _WORDS.match(value))
        arguments[argument] = json_or_text(value) if is_json else value
        position = end.end() if end["closes"] else end.start()
    if is_broken:
        return _fresh_start(reply, start, name) or Reading(position)
    calls = [call_of(name, arguments, source)]
    closer = dialect.end_of_call.match(text, position)
    end_of_call = closer.end() if closer else position
    is_closed = closer and not (opener[0].startswith("<tool_call>") and end_of_call == len(text))
    if not is_closed and reply.opens_unclosed_heredoc(start, position):
        return reply.cut_off
    if closer or (arguments and not key and dialect.after.match(text, position)):
        return Reading(end_of_call, calls)
    if cut := thought_that_ends(reply, position, len(text)) or _fresh_start(reply, start, name):
        return cut
    # in quotes, or with prose in place of arguments
    is_talk = text.endswith(("'", '"', "`"), 0, opener.start())
    if is_talk or not (arguments or dialect.rest.match(text, position)):
        return Reading(position)
    return Reading(len(text), calls)


read_function = partial(_read_call, _ELEMENTS, "qwen3_coder")
"""Reads Qwen3-Coder's `<function=bash><parameter=command>`, in `<tool_call>` or without."""
read_invoke = partial(_read_call, _ELEMENTS, "invoke")
"""Reads an invoke of Anthropic, MiniMax M2, Step 3 or DeepSeek, in any element around it."""
read_glm = partial(_read_call, _GLM, "glm")
"""Reads GLM's name and its keys and values in turn, all of them text."""
read_minimax_m3 = partial(_read_call, _MINIMAX_M3, "minimax_m3")


def _fresh_start(reply: ReplyText, start: int, name: str) -> Reading | None:
    """The reading up to another call on a later line, if this one is not closed before it.

    In a here-document, or a file that another tool writes, it is shown and the rest is cut off.
    """
    fresh = reply.next(_FRESH_CALL, start)
    if fresh is None:
        return None
    is_shown = (
        not is_bash_like(name)
        or reply.opens_unclosed_heredoc(start, fresh.start())
        or reply.heredoc_end_around(start, fresh.start()) is not None
    )
    return reply.cut_off if is_shown else Reading(fresh.end())


def _thought_before_call(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought within a value, if a call opens behind it: that call is meant."""
    thought = thought_that_ends(reply, start, end)
    if thought is None or not _CALL_OPENER.search(reply.text, thought.end, end):
        return None
    return None if reply.heredoc_end_around(start, thought.end - 1) else thought
