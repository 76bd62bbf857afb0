"""Here-documents of a command, as far as they hide what would end it.

A file that a command writes may hold fences and tags of its own: they close no block and no call.
"""

from __future__ import annotations

from itertools import islice

from agentkv.commands.heredocs import HEREDOC_OPENER
from agentkv.tool_calls.reply_text import ReplyText

_MAX_OPENERS = 500
"""Here-documents looked at between two fences or tags."""


def opens_unclosed_heredoc(reply: ReplyText, start: int, end: int) -> bool:
    """Whether a here-document opens between `start` and `end` whose delimiter never comes."""
    openers = islice(HEREDOC_OPENER.finditer(reply.text, start, end), _MAX_OPENERS)
    return any(reply.heredoc_end(opener["delimiter"], opener.end()) is None for opener in openers)


def end_of_heredoc_around(reply: ReplyText, start: int, index: int) -> int | None:
    """Where the here-document ends that opens after `start` and holds `index`; None if none does.

    Several may open on one line; a delimiter that no later line consists of opens none.
    """
    if reply.text.find("<<", start, index) < 0:
        return None
    read_to = line_end = start
    for opener in islice(HEREDOC_OPENER.finditer(reply.text, start, index), _MAX_OPENERS):
        if line_end < opener.start() < read_to:
            continue
        end = reply.heredoc_end(opener["delimiter"], max(opener.end(), read_to))
        if end is None:
            continue
        if end > index:
            return end
        if opener.start() > line_end:
            line_end = reply.text.find("\n", opener.end())
        read_to = end
    return None
