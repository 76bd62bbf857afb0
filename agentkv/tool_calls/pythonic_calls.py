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

from agentkv.tool_calls.call import ToolCall, call_of
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.thoughts import ends_a_thought, thought_that_ends

_MAX_LISTS, _MAX_PIECES, _MAX_DEPTH = 100, 10_000, 12
"""Lists in a row, strings, names and signs in one, and brackets nested; what has more is noise."""
_HEAD = r"(?:[A-Za-z_][\w.]{0,100}+\(\s*+(?:[A-Za-z_]\w{0,100}+\s*+=(?!=)|\)))"
TOKEN_OPENER = rf"<\|(?:python_(?:start|tag)|tool_call_start)\|>\s*+(?=\[\s*+{_HEAD})"
TAG_OPENER = rf"<function_calls>\s*+(?={_HEAD})"
BARE_OPENER = rf"\[(?=\s*+{_HEAD})"

_STRING = (
    r"[rR]?(?:'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
    r'|"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
    r"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"
    r'|"[^"\\]*+(?:\\.[^"\\]*+)*+")'
)
# No operators, so that `ast` never nests deep.
_PIECE = re.compile(
    rf"{_STRING}|[A-Za-z_][\w.]*+|-?\d[\w.]*+|[\s=,:]++|(?P<open>[(\[{{])|[)\]}}]", re.DOTALL
)
_TOKEN = re.compile(rf"{_STRING}|\b(?:true|false|null)\b", re.DOTALL)
_PYTHON_NAMES = {"true": "True", "false": "False", "null": "None"}
# Escapes that Python knows, backslashes that are none, and line ends.
_TO_ESCAPE = re.compile(
    r"\\(?:[\\'\"abfnrtv\n]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})|\\|\n"
)
_ESCAPES = {"\\": "\\\\", "\n": "\\n"}
_NO_PYTHON = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_END_OF_CALLS = re.compile(r"\s*+(?:<\||\Z)")
_CALL_ON_A_LINE = re.compile(rf"{_STRING}|(?P<end>\)[ \t]*+\n)", re.DOTALL)
_END_TOKEN = re.compile(r"<\|(?:python|tool_call)_end\|>|</function_calls>")
_BEFORE_CALLS = re.compile(r"(?:\s|<\|\w{1,40}\|>|assistant)*+")


def read_token(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read the lists behind a token, or OLMo 3's calls, one a line, in its tag; anything else is
    skipped."""
    start = opener.end()
    if reply.text[start] == "[":
        end, calls = _lists_at(reply.text, start)
        if calls:
            return Reading(end, calls)
    closer = reply.next(_END_TOKEN, start)
    limit = closer.start() if closer else len(reply.text)
    lines = _CALL_ON_A_LINE.sub(
        lambda part: "),\n" if part["end"] else part[0], reply.text[start:limit]
    )
    if calls := _calls_of(f"[{lines}]"):
        return Reading(limit, calls)
    return thought_that_ends(reply, start, limit) or Reading(limit)


def read_bare(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read lists that are the whole reply; behind prose they are examples or indexed objects."""
    start, floor = opener.start(), reply.floor
    # nothing but thoughts and tokens stands before a call
    is_answer = (not floor or ends_a_thought(reply.text, floor)) and _BEFORE_CALLS.fullmatch(
        reply.text, floor, start
    )
    if not is_answer or not reply.is_at_line_start(start):
        return None
    end, calls = _lists_at(reply.text, start)
    if end == start:
        stop = _stop_of(reply.text, start)
        return reply.cut_off if reply.text[stop : stop + 1] in ("'", '"') else None
    return Reading(end, calls if _END_OF_CALLS.match(reply.text, end) else ())


def literal_of(text: str) -> dict[str, object] | None:
    """The dict that a text writes in Python's quotes; None if it is no such text."""
    text = text.strip()
    if text[:1] != "{" or _stop_of(text, 0) != len(text):
        return None
    try:
        value = ast.literal_eval(_TOKEN.sub(_as_python, text))
    except _NO_PYTHON:
        return None
    return value if isinstance(value, dict) else None


def _lists_at(text: str, start: int) -> tuple[int, list[ToolCall]]:
    """The end of the lists of calls in a row, and their calls, up to one that is not Python."""
    calls: list[ToolCall] = []
    end = start
    for _ in range(_MAX_LISTS):
        stop = _stop_of(text, start) if text.startswith("[", start) else start
        if text[stop - 1] != "]" or not (found := _calls_of(text[start:stop])):
            break
        calls, end = calls + found, stop
        start = stop + len(text[stop : stop + 100]) - len(text[stop : stop + 100].lstrip())
    return end, calls


def _stop_of(text: str, start: int) -> int:
    """The index behind the bracket that closes the one at `start`, or of what Python's constants
    do not have."""
    depth = 0
    for _ in range(_MAX_PIECES):
        piece = _PIECE.match(text, start)
        if piece is None or depth > _MAX_DEPTH:
            break
        start = piece.end()
        depth += 1 if piece["open"] else -(piece[0] in ")]}")
        if depth == 0:
            break
    return start


def _calls_of(text: str) -> list[ToolCall]:
    """The calls of a list of Python calls, or none if it is none."""
    if _stop_of(text, 0) != len(text):
        return []
    try:
        tree = ast.parse(_TOKEN.sub(_as_python, text), mode="eval").body
        return [_call(node) for node in getattr(tree, "elts", ())]
    except _NO_PYTHON:
        return []


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args:
        raise TypeError(f"not a call by keywords: {type(node).__name__}")
    arguments: Mapping[str, object] = {
        str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords
    }
    if len(arguments) < len(node.keywords):
        raise ValueError("a keyword is given twice")
    return call_of(ast.unparse(node.func), arguments, "llama")


def _as_python(token: re.Match[str]) -> str:
    text = token[0]
    if text in _PYTHON_NAMES:
        return _PYTHON_NAMES[text]
    if text[0] in "rR":
        return text
    return _TO_ESCAPE.sub(lambda escape: _ESCAPES.get(escape[0], escape[0]), text)
