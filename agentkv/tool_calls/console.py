"""Commands of a terminal session: the lines after a prompt, without the output between."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentkv.commands.heredocs import HEREDOC_OPENER

# `user@host:~/x`, `[user@host x]`, `bash-5.1`, `~/x (main)`, behind environments such as `(venv)`.
_PLACE = (
    r"(?:\[[^\]\s][^\]\n]{0,99}+\]"
    r"|[\w.-]{1,60}@[\w.-]{1,100}+[^\n$#%>\u276f]{0,200}+"
    r"|(?:ba|da|k|z)?sh-[\d.]{1,8}"
    r"|[~/][^\s$#%>\u276f]{0,200}(?:[ \t]\([^()\n]{1,80}\))?)[ \t]?"
)
_PROMPT = re.compile(
    rf"(?:\([\w.+/-]{{1,60}}\)[ \t]?){{0,3}}+(?P<place>{_PLACE})?"
    # by itself a number sign begins a comment
    r"(?P<sign>[$%\u276f]|(?(place)#|(?!)))(?:[ \t]|$)"
)
_CONTINUATION = "> "


def commands_of(session: str) -> str | None:
    """The commands of a session, one after the other; None for a text without prompts."""
    lines = session.split("\n")
    first = next(filter(None, map(_PROMPT.match, lines)), None)
    if first is None:
        return None
    return "\n".join(_typed_lines(lines, first))


def _typed_lines(lines: list[str], first: re.Match[str]) -> Iterator[str]:
    """What was typed behind prompts like the first; output may hold others."""
    is_typing = is_continued = False
    delimiter: str | None = None
    for line in lines:
        if is_typing and line.startswith(_CONTINUATION):
            line = line.removeprefix(_CONTINUATION)
        elif delimiter is None and not is_continued:
            prompt = _PROMPT.match(line)
            is_typing = prompt is not None and _is_alike(prompt, first)
            line = line[prompt.end() :] if prompt else line
        if not is_typing:
            continue
        yield line
        is_continued = line.endswith("\\")
        if delimiter is None:
            heredoc = HEREDOC_OPENER.search(line)
            delimiter = heredoc["delimiter"] if heredoc else None
        elif line.strip() == delimiter:
            delimiter = None


def _is_alike(prompt: re.Match[str], first: re.Match[str]) -> bool:
    """Whether both say where they are, or both do not and end alike."""
    if first["place"] is None:
        return prompt["place"] is None and prompt["sign"] == first["sign"]
    return prompt["place"] is not None
