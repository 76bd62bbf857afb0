"""Bash in a tag that says so: `<bash>ls</bash>`, mini-swe-agent's `<mswea_bash_command>`."""

from __future__ import annotations

import re

from agentkv.tool_calls.call import bash_call
from agentkv.tool_calls.reply_text import (
    Reading,
    ReplyText,
    end_of_heredoc_around,
    opens_unclosed_heredoc,
)

_TAGS = (
    "bash",
    "sh",
    "shell",
    "zsh",
    "mswea_bash_command",
    "bash_command",
    "execute_bash",
    "run_bash",
    "execute_command",
    "run_command",
    "run_shell_command",
)
_QUOTE = "['\"`]"
_TAG_PATTERNS = {
    # a tag in quotes is a part of the command
    tag: re.compile(
        rf"<(?:{tag}>(?!\$?{_QUOTE})(?<!{_QUOTE}<{tag}>)"
        rf"|(?P<closes>/{tag}>)(?!\$?{_QUOTE})(?:(?<!{_QUOTE}</{tag}>)|(?![$|/\\*+?()\[\]])))",
        re.IGNORECASE,
    )
    for tag in _TAGS
}
# Cline's execute_command holds its arguments as elements.
_INNER_COMMAND = re.compile(r"\s*+<command>(.*)</command>", re.DOTALL)
# No bash starts with backticks: a model that fenced its command within the tag.
_INNER_FENCE = re.compile(r"\s*+```\w*+\n(.*?)\n?```\s*", re.DOTALL)

_OTHER_TAGS = (
    "write_to_file",
    "replace_in_file",
    "apply_diff",
    "insert_content",
    "search_and_replace",
    "attempt_completion",
    "ask_followup_question",
    "plan_mode_respond",
    "new_task",
)
_ENDS_OF_OTHER = {tag: re.compile(f"</{tag}>") for tag in _OTHER_TAGS}

OPENER = rf"<(?P<tag>(?i:{'|'.join(_TAGS)}))>"
OTHER_OPENER = rf"<(?P<other_tag>{'|'.join(_OTHER_TAGS)})>(?=\s*+<)"


def read_tag(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """The command up to the closing tag; a tag that is never closed is talk, or cut off.

    It is talk where a second one opens the command, unless that is in a here-document of the
    first. Blanks around a command of one line belong to the tags.
    """
    closer = _next_tag(reply, opener)
    if closer is None or not closer["closes"]:
        is_block = reply.text.startswith("\n", opener.end())
        is_block &= reply.is_at_line_start(opener.start())
        is_cut_off = closer is None or opens_unclosed_heredoc(reply, opener.end(), closer.start())
        return reply.cut_off if is_block and is_cut_off else None
    body = reply.text[opener.end() : closer.start()]
    if inner := _INNER_COMMAND.match(body):
        body = inner[1]
    if fence := _INNER_FENCE.fullmatch(body):
        body = fence[1]
    return Reading(closer.end(), bash_call(body if "\n" in body else body.strip(), "tagged"))


def read_other(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Cline's other tools: what they write or say may show commands, and runs none."""
    if not reply.is_at_line_start(opener.start()):
        return None
    end = reply.next(_ENDS_OF_OTHER[opener["other_tag"]], opener.end())
    return Reading(end.end()) if end else reply.cut_off


def _next_tag(reply: ReplyText, opener: re.Match[str]) -> re.Match[str] | None:
    """The next tag of the same name outside of here-documents.

    A closing tag that another opening one follows before the delimiter comes is in none: then the
    delimiter belongs to that one.
    """
    tags = _TAG_PATTERNS[opener["tag"].lower()]
    position = opener.end()
    while tag := reply.next(tags, position):
        end = end_of_heredoc_around(reply, position, tag.start())
        if end is None:
            return tag
        following = tags.search(reply.text, tag.end(), end) if tag["closes"] else None
        if following and not following["closes"]:
            return tag
        position = end
    return None
