"""Numbers that a bash text gives: the rounds of a loop, the seconds of a duration.

`analysis` asks for rounds, `prefixes` and the predictors for seconds. Both are None if the text
does not say.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from itertools import pairwise

from tree_sitter import Node

from agentkv.commands.program import LIMITS
from agentkv.commands.syntax import text_of

MAX_ROUNDS = 10_000
_SEQ = re.compile(r"(?:\$\(|`)\s*seq((?:\s+-?[0-9]{1,6}){1,3})\s*[)`]")
_COUNTED = re.compile(
    r"for\s*\(\(\s*(\w+)\s*=\s*([0-9]{1,6})\s*;\s*\1\s*(<=?)\s*([0-9]{1,6})\s*;"
    r"\s*(?:\1\+\+|\+\+\1|\1\s*\+=\s*1)\s*\)\)"
)
_HEAD_CHARS = 120
_ALWAYS_TRUE = re.compile(
    r"true|:|\[ 1 \]|\[\[ 1 \]\]|\[ true \]|\(\(\s*1\s*\)\)|! false|sleep\b.*"
)
_ALWAYS_FALSE = re.compile(r"false|! true|! :|\[ 0 \]|\(\(\s*0\s*\)\)")
_ENDLESS_FOR = re.compile(r"for\s*\(\([^;()]*;\s*;[^;()]*\)\)")

_DURATION = re.compile(
    r"\+?(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?|inf(?:inity)?)"
    r"(?P<unit>[smhd]?)"
    r"|0[xX](?P<hex>[0-9a-fA-F]{1,8})",
    re.IGNORECASE,
)
_ARITHMETIC = re.compile(r"\$\(\((?P<text>[0-9+\-*/%() ]{1,40})\)\)(?P<unit>[smhd]?)")
_DEFAULT = re.compile(r"\$\{\w{1,64}:?-(?P<number>[0-9.]{1,20})(?P<own>[smhd]?)\}(?P<unit>[smhd]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def num_rounds(loop: Node) -> int | None:
    """The rounds of a `for` over words, a range, `seq` or a counter; None for any other loop."""
    if loop.type == "c_style_for_statement":
        if (match := _COUNTED.match(_head_of(loop))) is None:
            return None
        num = int(match[4]) - int(match[2]) + (match[3] == "<=")
        return min(max(num, 0), MAX_ROUNDS)
    values = [
        child for child in loop.named_children if child.type not in ("variable_name", "do_group")
    ]
    if loop.type != "for_statement" or not values:
        return None
    if len(values) == 1 and values[0].type in ("concatenation", "brace_expression"):
        low, _, high = text_of(values[0]).strip("{}").partition("..")
        if low.isdecimal() and high.isdecimal():
            return min(abs(int(high[:6]) - int(low[:6])) + 1, MAX_ROUNDS)
    if len(values) == 1 and values[0].type == "command_substitution":
        return _in_sequence(text_of(values[0]))
    return len(values) if all(map(_is_one_value, values)) else None


def is_endless(loop: Node) -> bool:
    """Whether the loop's own condition never ends it: `while true`, `until false`, `for ((;;))`."""
    if loop.type == "c_style_for_statement":
        return _ENDLESS_FOR.match(_head_of(loop)) is not None
    if loop.type != "while_statement" or not loop.named_children:
        return False
    never_ends = _ALWAYS_FALSE if _head_of(loop).startswith("until") else _ALWAYS_TRUE
    return never_ends.fullmatch(text_of(loop.named_children[0])[:_HEAD_CHARS]) is not None


def _head_of(loop: Node) -> str:
    return text_of(loop)[:_HEAD_CHARS]


def _in_sequence(text: str) -> int | None:
    match = _SEQ.fullmatch(text[:_HEAD_CHARS])
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split()]
    first, last = (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[-1])
    step = numbers[1] if len(numbers) == 3 else 1
    return min(max((last - first) // step + 1, 0), MAX_ROUNDS) if step else None


def _is_one_value(node: Node) -> bool:
    """Whether a word is a single value: no glob, no expansion."""
    is_plain = node.type in ("word", "number", "string", "raw_string")
    return is_plain and not any(sign in text_of(node) for sign in "*?[$`")


def duration_s(word: str) -> float | None:
    """The seconds of a duration as coreutils read it: `60`, `1.5m`, `1e9`, `infinity`.

    Arithmetic on constants (`$((60*10))`) and defaults (`${N:-10}`) are evaluated.
    """
    if match := _DURATION.fullmatch(word):
        if match["hex"]:
            return float(int(match["hex"], 16))
        return float(match["number"]) * _SECONDS[match["unit"].lower()]
    if match := _DEFAULT.fullmatch(word):
        return duration_s(match["number"] + (match["own"] or match["unit"]))
    match = _ARITHMETIC.fullmatch(word)
    total = _sum(match["text"]) if match else None
    return None if match is None or total is None else total * _SECONDS[match["unit"]]


def own_limit_s(name: str, key: str, argv: tuple[str, ...]) -> float | None:
    """The seconds after which a program's own option ends it, None without: `curl -m 5`."""
    options = LIMITS.get(key) or LIMITS.get(name) or ()
    for word, after in pairwise((*argv[1:], "")) if options else ():
        option, has_value, value = word.partition("=")
        seconds = duration_s(value if has_value else after) if option in options else None
        if seconds and not math.isinf(seconds):
            return seconds
    return None


def _sum(text: str) -> int | None:
    """The value of an arithmetic expansion of constants; None if bash would refuse it."""
    try:
        total = _value(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    return total if total >= 0 else None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(f"not arithmetic on constants: {type(node).__name__}")
