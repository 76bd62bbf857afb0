"""Commands of a terminal session: the lines after a `$ ` prompt, without the output between."""

from __future__ import annotations

from collections.abc import Iterator

from agentkv.commands.heredocs import HEREDOC_OPENER

_PROMPT = "$ "
_CONTINUATION = "> "


def commands_of(session: str) -> str:
    """The commands of a session, one after the other; a text without prompts is all commands."""
    lines = session.split("\n")
    if not any(line.startswith(_PROMPT) for line in lines):
        return session
    return "\n".join(_typed_lines(lines))


def _typed_lines(lines: list[str]) -> Iterator[str]:
    is_typing = is_continued = False
    delimiter: str | None = None
    for line in lines:
        if is_typing and line.startswith(_CONTINUATION):
            line = line.removeprefix(_CONTINUATION)
        elif delimiter is None and not is_continued:
            is_typing = line.startswith(_PROMPT)
            line = line.removeprefix(_PROMPT)
        if not is_typing:
            continue
        yield line
        is_continued = line.endswith("\\")
        if delimiter is None:
            heredoc = HEREDOC_OPENER.search(line)
            delimiter = heredoc["delimiter"] if heredoc else None
        elif line.strip() == delimiter:
            delimiter = None
