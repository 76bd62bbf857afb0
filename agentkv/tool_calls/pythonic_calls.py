r"""Calls written as a list of Python calls, by Llama 3.2 and 4: `[bash(command="ls")]`.

OLMo 3 writes one a line, in an element.

Only keywords and constants make a call; no code is ever run. Models write what Python would not
take: a command's line ends and backslashes such as `\d` as they are, `true` and `null`. The scanner
calls the readers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache

from agentkv.tool_calls.call import ToolCall, call_of
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.thoughts import ends_a_thought, thought_that_ends

_MAX_CALLS, _MAX_KEYWORDS, _MAX_ITEMS = 100, 50, 1000
"""In a row, per call, and per value; a list that has more is noise, and slow to parse."""
_NAME, _KEY = r"[A-Za-z_][\w.]{0,100}+", r"[A-Za-z_]\w{0,100}+"
_HEAD = rf"(?:{_NAME}\(\s*+(?:{_KEY}\s*+=(?!=)|\)))"
TOKEN_OPENER = rf"<\|(?:python_(?:start|tag)|tool_call_start)\|>\s*+(?=\[\s*+{_HEAD})"
TAG_OPENER = rf"<function_calls>\s*+(?={_HEAD})"
BARE_OPENER = rf"\[(?=\s*+{_HEAD})"

_STRING = (
    r"[rR]?(?:'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
    r'|"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
    r"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"
    r'|"[^"\\]*+(?:\\.[^"\\]*+)*+")'
)
_CONSTANT = (
    rf"(?:{_STRING}(?:\s*+{_STRING})*+"
    r"|-?\d{1,30}+(?:\.\d{0,30}+)?+(?:[eE][+-]?\d{1,3}+)?+(?![\w.])"
    r"|(?:True|False|None|true|false|null)\b)"
)


def _or_list_of(value: str) -> str:
    """The pattern of a value, or of a list or dict of such; `ast` checks the commas."""
    return rf"(?:{value}|[\[{{](?:{value}|[\s,:]){{0,{_MAX_ITEMS}}}+[\]}}])"


_KEYWORD = rf"{_KEY}\s*+=\s*+{_or_list_of(_or_list_of(_CONSTANT))}\s*+"
_CALL = rf"{_NAME}\(\s*+(?:{_KEYWORD}(?:,\s*+{_KEYWORD}){{0,{_MAX_KEYWORDS}}}+(?:,\s*+)?+)?+\)\s*+"
_LIST = rf"\[\s*+{_CALL}(?:,\s*+{_CALL}){{0,{_MAX_CALLS}}}+(?:,\s*+)?+\]"
_LISTS = rf"{_LIST}(?:\s*+{_LIST}){{0,{_MAX_CALLS}}}+"
_CALLS = rf"{_CALL}(?:{_CALL}){{0,{_MAX_CALLS}}}+"
_CUT_OFF_IN_A_STRING = (
    rf"\[\s*+(?:{_CALL},\s*+)*+{_NAME}\(\s*+(?:{_KEYWORD},\s*+)*+{_KEY}\s*+=\s*+(?!{_STRING})['\"]"
)
_END_OF_CALLS = re.compile(r"\s*+(?:<\||\Z)")
_END_TOKEN = re.compile(r"<\|(?:python|tool_call)_end\|>|</function_calls>")
_BEFORE_CALLS = re.compile(r"(?:\s|<\|\w{1,40}\|>|assistant)*+")

# No operators, so that `ast` never nests deep.
_LITERAL = rf"\s*+\{{(?:{_CONSTANT}|[\s,:\[\]{{}}])*+"
_TOKEN = re.compile(rf"{_STRING}|\b(?:true|false|null)\b", re.DOTALL)
_PYTHON_NAMES = {"true": "True", "false": "False", "null": "None"}
# Escapes that Python knows, backslashes that are none, and line ends.
_TO_ESCAPE = re.compile(
    r"\\(?:[\\'\"abfnrtv\n]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|\\|\n"
)
_ESCAPES = {"\\": "\\\\", "\n": "\\n"}


def read_token(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read the lists behind a token, or OLMo 3's calls, one a line, in its tag; anything else is
    skipped."""
    start = opener.end()
    if found := _compiled(_LISTS).match(reply.text, start):
        return Reading(found.end(), _calls_in(found[0]))
    end = reply.next(_END_TOKEN, start)
    limit = end.start() if end else len(reply.text)
    if _compiled(_CALLS).fullmatch(reply.text, start, limit):
        calls = _compiled(_CALL).finditer(reply.text, start, limit)
        return Reading(limit, _calls_in("".join(f"[{call[0]}]" for call in calls)))
    return thought_that_ends(reply, start, limit) or Reading(limit)


def read_bare(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read lists that are the whole reply; behind prose they are examples or indexed objects."""
    start = opener.start()
    if not reply.is_at_line_start(start):
        return None
    # nothing but thoughts and tokens stands before a call
    is_answer = (
        not reply.floor or ends_a_thought(reply.text, reply.floor)
    ) and _BEFORE_CALLS.fullmatch(reply.text, reply.floor, start)
    lists = _compiled(_LISTS).match(reply.text, start)
    if lists is None:
        is_cut_off = is_answer and _compiled(_CUT_OFF_IN_A_STRING).match(reply.text, start)
        return reply.cut_off if is_cut_off else None
    end = lists.end()
    if not _END_OF_CALLS.match(reply.text, end):
        is_noise = _compiled(_LIST).match(reply.text, end)  # more than are read in a row
        return reply.cut_off if is_noise else Reading(end)
    return Reading(end, _calls_in(lists[0]) if is_answer else ())


def _calls_in(lists: str) -> list[ToolCall]:
    """The calls of all lists, or none if one of them is not Python."""
    calls: list[ToolCall] = []
    try:
        for found in _compiled(_LIST).finditer(lists):
            tree = ast.parse(_TOKEN.sub(_as_python, found[0]), mode="eval").body
            calls += map(_call, getattr(tree, "elts", ()))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []
    return calls


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise TypeError(f"not a call: {type(node).__name__}")
    arguments: Mapping[str, object] = {
        str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords
    }
    if len(arguments) < len(node.keywords):
        raise ValueError("a keyword is given twice")
    return call_of(ast.unparse(node.func), arguments, "llama")


def literal_of(text: str) -> dict[str, object] | None:
    """The dict that a text writes in Python's quotes; None if it is no such text."""
    if not _compiled(_LITERAL).fullmatch(text):
        return None
    try:
        value = ast.literal_eval(_TOKEN.sub(_as_python, text.strip()))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern on first use: it takes up to 20 ms, and few models write so."""
    return re.compile(pattern, re.DOTALL)


def _as_python(token: re.Match[str]) -> str:
    text = token[0]
    if text in _PYTHON_NAMES:
        return _PYTHON_NAMES[text]
    if text[0] in "rR":
        return text
    return _TO_ESCAPE.sub(lambda escape: _ESCAPES.get(escape[0], escape[0]), text)
