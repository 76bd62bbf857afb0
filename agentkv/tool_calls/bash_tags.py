"""Bash in an element that names it: `<bash>ls</bash>`, mini-swe-agent's `<mswea_bash_command>`,
SWE-agent's `<command>`.

Also the elements of Terminus that type into a terminal. The scanner calls the readers.
"""

from __future__ import annotations

import re

from agentkv.tool_calls.call import bash_calls, call_of
from agentkv.tool_calls.reply_text import Reading, ReplyText

_BASH_TAGS = (
    *("bash", "sh", "shell", "zsh", "mswea_bash_command", "bash_command", "execute_bash"),
    *("run_bash", "execute_command", "run_command", "run_shell_command", "command"),
)
_QUOTE = "['\"`]"
_TAG_PATTERNS = {
    # a tag in quotes is a part of the command
    tag: re.compile(
        rf"<(?:{tag}>(?!\$?{_QUOTE})(?<!{_QUOTE}<{tag}>)"
        rf"|(?P<closes>/{tag}>)(?!\$?{_QUOTE})(?:(?<!{_QUOTE}</{tag}>)|(?![$|/\\*+?()\[\]])))",
        re.IGNORECASE,
    )
    for tag in _BASH_TAGS
}
# Cline's execute_command holds its arguments as elements.
_INNER_COMMAND = re.compile(r"\s*+<command>(.*)</command>", re.DOTALL)
# No bash starts with backticks: the model fenced its command within the element.
_INNER_FENCE = re.compile(r"\s*+```\w*+\n(.*?)\n?```\s*", re.DOTALL)

_TYPED = re.compile(
    r"<keystrokes(?:[^<>]{0,200}?\bduration\s*+=\s*+[\"'](?P<duration>\d{1,9}(?:\.\d{1,9})?)[\"'])?"
    r"[^<>]{0,200}+>(?P<keys>(?:(?!<keystrokes\b).)*?)</keystrokes>",
    re.DOTALL,
)
_END_OF_TYPED = re.compile("</commands>")

BASH_OPENER = rf"<(?P<tag>(?i:{'|'.join(_BASH_TAGS)}))>"
TYPED_OPENER = r"<commands>(?=\s*+<keystrokes\b)"


def read_bash_tag(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read the command up to its closing tag; without one it is talk, or cut off.

    It is talk if a second tag opens before the first closes, unless in a here-document of the
    first. Blanks around a command of one line are dropped.
    """
    is_at_line_start = reply.is_at_line_start(opener.start())
    if opener["tag"].lower() == "command" and not is_at_line_start:
        return None  # an element of somebody else's, in a line of talk
    closer = reply.next_outside_heredocs(_TAG_PATTERNS[opener["tag"].lower()], opener.end())
    if closer is None or not closer["closes"]:
        is_block = is_at_line_start and reply.text.startswith("\n", opener.end())
        is_cut_off = closer is None or reply.opens_unclosed_heredoc(opener.end(), closer.start())
        return reply.cut_off if is_block and is_cut_off else None
    body = reply.text[opener.end() : closer.start()]
    if inner := _INNER_COMMAND.match(body):
        body = inner[1]
    if fence := _INNER_FENCE.fullmatch(body):
        body = fence[1]
    return Reading(closer.end(), bash_calls(body if "\n" in body else body.strip(), "tagged"))


def read_typed(reply: ReplyText, opener: re.Match[str]) -> Reading:
    """Read what Terminus types, in turn; without the closing tag it types nothing.

    Source: agents/terminus_2/terminus_xml_plain_parser.py of terminal-bench 0.2.18.
    """
    end = reply.next(_END_OF_TYPED, opener.end())
    if end is None:
        return reply.cut_off
    typed = _TYPED.finditer(reply.text, opener.end(), end.start())
    given = [{"keystrokes": t["keys"], "duration": float(t["duration"] or 1)} for t in typed]
    return Reading(end.end(), [call_of("terminal", keys, "terminus") for keys in given])
