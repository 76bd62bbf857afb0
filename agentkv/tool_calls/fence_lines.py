"""Lines that start with a fence: whether they close a block, or open one."""

from __future__ import annotations

import re

FENCE_LINE = re.compile(r"\n(?P<indent>[ \t]{0,60}+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^\n]*+)")
"""A line with a fence at its start, and the line end before it."""

# Behind a closing fence: nothing, a token or tag of the chat template, or prose.
_BEHIND_CLOSER = re.compile(r"[ \t]*+(?:\Z|<|[.,;:!)]|[A-Z(]\S*[ \t]+\S)")
_INFO = re.compile(r"[ \t]*+[\w{.]")
# Escapes, comments and closed quotes come first: an open quote is what is left.
_QUOTED = re.compile(
    r"\\.|(?<!\S)#[^\n]*+|'[^']*+'|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|(?P<open>['\"])", re.DOTALL
)


def closes(line: re.Match[str]) -> bool:
    """Whether the line can close a block."""
    return _BEHIND_CLOSER.match(line["info"]) is not None


def is_opener(line: re.Match[str]) -> bool:
    """Whether the line names a language, as only one that opens a block does."""
    return _INFO.match(line["info"]) is not None and not closes(line)


def has_open_quote(text: str, start: int, end: int) -> bool:
    """Whether a shell that reads from `start` to `end` is inside of a quote there."""
    return any(match["open"] for match in _QUOTED.finditer(text, start, end))
