"""Durations as coreutils read them: `60`, `1.5m`, `1e9`, `infinity`; and those a text works out."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

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


def duration_s(word: str) -> float | None:
    """Seconds of a duration such as `60`, `1.5m`, `1e9` or `infinity` (infinite).

    Sums of constants (`$((60*10))`) and defaults (`${N:-10}`) count as what they give; None for
    what the word does not say.
    """
    match = _DURATION.fullmatch(word)
    if match:
        if match["hex"]:
            return float(int(match["hex"], 16))
        return float(match["number"]) * _SECONDS[match["unit"].lower()]
    match = _DEFAULT.fullmatch(word)
    if match:
        return duration_s(match["number"] + (match["own"] or match["unit"]))
    match = _ARITHMETIC.fullmatch(word)
    total = _sum(match["text"]) if match else None
    return None if match is None or total is None else total * _SECONDS[match["unit"]]


def _sum(text: str) -> int | None:
    """What an arithmetic expansion of constants gives; None where bash would refuse it."""
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
    raise ValueError(f"no sum of constants: {type(node).__name__}")
