"""Cuts long here-documents short, so that what runs after them is within the text analysed."""

from __future__ import annotations

import re

_OPENER = re.compile(r"<<-?[ \t]*(['\"]?)\\?([A-Za-z_][A-Za-z0-9_]{0,63})\1")
_KEPT_CHARS = 400
_MAX_HEREDOCS = 16


def elide_heredocs(text: str) -> str:
    """The text with each here-document's body cut to its first 400 characters. Linear time."""
    if "<<" not in text:
        return text
    parts: list[str] = []
    position = 0
    for _ in range(_MAX_HEREDOCS):
        opener = _OPENER.search(text, position)
        body = text.find("\n", opener.end()) + 1 if opener else 0
        if opener is None or not body:
            break
        end = _end_of_body(text, body, opener[2])
        kept = min(body + _KEPT_CHARS, end)
        parts += text[position:kept], "\n" if kept < end else ""
        position = end
    parts.append(text[position:])
    return "".join(parts)


def _end_of_body(text: str, start: int, delimiter: str) -> int:
    """Where the line that is only the delimiter begins; the text's end if there is none."""
    closer = re.compile(rf"^[ \t]*{delimiter}[ \t]*$", re.MULTILINE).search(text, start)
    return closer.start() if closer else len(text)
