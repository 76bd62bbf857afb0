"""Shows text of others on a terminal, in a log, in a file: what it could hide or move, escaped."""

from __future__ import annotations

import io
import re
import unicodedata
from typing import TextIO

_SUSPECT = re.compile(r"[^ -~]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPED = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of controls, formats (they reorder or hide text), halves and line ends."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks of no width, or without ink."""


def visible(text: str, *, keep: str = "") -> str:
    r"""The text on one line, with controls and hidden characters as `\n` or `\u001b`.

    A string of JSON, TOML or YAML means the same afterwards. keep: characters left as they are.
    """
    return _SUSPECT.sub(lambda found: found[0] if found[0] in keep else _shown(found[0]), text)


def _shown(char: str) -> str:
    if unicodedata.category(char) not in _ESCAPED and char not in _BLANK:
        return char
    code = ord(char)
    return _SHORT.get(char) or (f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}")


class VisibleStream(io.TextIOBase):
    """Standard output or error, whose lines stay; no terminal, so nobody sends colours through."""

    def __init__(self, stream: TextIO) -> None:
        self.beneath = stream
        self.flush = stream.flush  # type: ignore[method-assign]

    def write(self, text: str, /) -> int:
        """Write the text as it can be seen."""
        return self.beneath.write(visible(text, keep="\n"))
