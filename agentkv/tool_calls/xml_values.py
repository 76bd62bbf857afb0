"""Where a value written as an element ends, in dialects that escape nothing.

A command may write a file in the very dialect of its call. So what a here-document holds ends no
value, and elements that open within the value close within it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentkv.tool_calls.heredocs import end_of_heredoc_around
from agentkv.tool_calls.reply_text import ReplyText

MAX_UNBALANCED = 3
"""Values per reply whose tags are counted in vain; after them the first closing tag counts."""
_BEFORE_CHARS = 40


@dataclass(frozen=True, slots=True)
class ValueTags:
    """The tags of a dialect.

    Groups of `tag` say what one is: call, value, end_of_value or end_of_call. `end` is a tag that
    ends a value by what follows, with a group `closes` unless it is one where the value's own was
    forgotten.
    """

    tag: re.Pattern[str]
    end: re.Pattern[str]
    call: re.Pattern[str]


def end_of_value(reply: ReplyText, start: int, tags: ValueTags) -> re.Match[str] | None:
    """The tag that ends the value from `start` on; None if the reply was cut off within it.

    It is the first that leaves no element open. Where the call ends before one comes, a closing
    tag was forgotten or an element only spoken of: then the first that can end a value.
    """
    if reply.num_unbalanced >= MAX_UNBALANCED:
        return reply.next(tags.end, start)
    text, position = reply.text, start
    num_values = num_calls = 1
    while tag := tags.tag.search(text, position):
        is_end = tag.lastgroup == "end_of_value"
        end = tags.end.match(text, tag.start()) if is_end and num_values == 1 else None
        heredoc_end = _heredoc_end_past(reply, position, tag, tags, is_end=end is not None)
        position = heredoc_end or tag.end()
        if heredoc_end is not None:
            continue
        if end:
            return end
        if is_end:
            num_values = max(1, num_values - 1)
        elif tag.lastgroup == "end_of_call":
            num_calls -= 1
        elif _stands_alone(text, tag.start()):
            num_values += tag.lastgroup == "value"
            num_calls += tag.lastgroup == "call"
        if num_calls == 0:
            break
    reply.num_unbalanced += 1
    return _first_end(reply, start, tags) if num_calls == 0 else None


def _first_end(reply: ReplyText, start: int, tags: ValueTags) -> re.Match[str] | None:
    """The first tag outside of here-documents that can end a value."""
    while end := reply.next(tags.end, start):
        heredoc_end = _heredoc_end_past(reply, start, end, tags, is_end=True)
        if heredoc_end is None:
            return end
        start = heredoc_end
    return None


def _heredoc_end_past(
    reply: ReplyText, start: int, tag: re.Match[str], tags: ValueTags, *, is_end: bool
) -> int | None:
    """Where the here-document around a tag ends; None if there is none.

    Nor if the tag ends the value and another call opens before the delimiter comes: then the
    delimiter belongs to that one.
    """
    heredoc_end = end_of_heredoc_around(reply, start, tag.start())
    if heredoc_end is None or not is_end:
        return heredoc_end
    call = reply.next(tags.call, tag.end())
    return None if call and call.start() < heredoc_end else heredoc_end


def _stands_alone(text: str, index: int) -> bool:
    """Whether only blanks, a tag or a diff's sign are before a tag on its line: else it is talk."""
    before = text[max(0, index - _BEFORE_CHARS) : index].rstrip(" \t")
    return before.endswith(("\n", ">", "\n+", "\n-"))
