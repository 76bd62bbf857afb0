"""Bash in a tag that says so: `<bash>ls</bash>`, mini-swe-agent's `<mswea_bash_command>`."""

from __future__ import annotations

import re

from agentkv.tool_calls.call import bash_call
from agentkv.tool_calls.reply_text import Reading, ReplyText

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
_CLOSERS = {
    # a closing tag in quotes is a part of the command
    tag: re.compile(rf"(?<!['\"`])</{tag}>(?!['\"`])", re.IGNORECASE)
    for tag in _TAGS
}
# Cline's execute_command holds its arguments as elements.
_INNER_COMMAND = re.compile(r"\s*+<command>(.*?)</command>", re.DOTALL)
# No bash starts with backticks: a model that fenced its command within the tag.
_INNER_FENCE = re.compile(r"\s*+```\w*+\n(.*?)\n?```\s*", re.DOTALL)

OPENER = rf"<(?P<tag>(?i:{'|'.join(_TAGS)}))>"


def read_tag(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """The command up to the closing tag; a tag that is never closed is talk, or cut off.

    Blanks around a command of one line belong to the tags.
    """
    closer = reply.next(_CLOSERS[opener["tag"].lower()], opener.end())
    if closer is None:
        is_block = reply.text.startswith("\n", opener.end())
        return reply.cut_off if is_block and reply.is_at_line_start(opener.start()) else None
    body = reply.text[opener.end() : closer.start()]
    if opener[0] in body:  # the first tag was talk, the second opens the command
        return None
    if inner := _INNER_COMMAND.match(body):
        body = inner[1]
    if fence := _INNER_FENCE.fullmatch(body):
        body = fence[1]
    return Reading(closer.end(), bash_call(body if "\n" in body else body.strip(), "tagged"))
