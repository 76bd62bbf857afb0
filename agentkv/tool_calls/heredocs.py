"""Here-documents of a bash block, as far as they hide a Markdown fence.

A file that a command writes may hold fences of its own: they close no block.
"""

from __future__ import annotations

from itertools import islice

from agentkv.commands.heredocs import HEREDOC_OPENER
from agentkv.tool_calls.reply_text import ReplyText

_MAX_OPENERS = 500
"""Here-documents looked at between two lines with a fence."""


def end_of_heredoc_around(reply: ReplyText, start: int, index: int) -> int | None:
    """Where the here-document ends that opens after `start` and holds `index`; None if none does.

    Several may open on one line; a delimiter that no later line consists of opens none.
    """
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
