"""Blocks of bash, in Markdown's fences or in an element that names it: `<bash>ls</bash>`.

Other Markdown blocks are text and hide what is in them. Elements are mini-swe-agent's
`<mswea_bash_command>`, SWE-agent's `<command>` and those of Terminus that type into a terminal.
Called by the scanner. Not markdown-it-py: by CommonMark a block that is never closed runs to the
end and a fence in a here-document closes its block, both wrong for commands to run.
"""

from __future__ import annotations

import re

from agentkv.tool_calls.call import ToolCall, bash_calls, call_of
from agentkv.tool_calls.json_calls import calls_of_answer
from agentkv.tool_calls.reply_text import Reading, ReplyText
from agentkv.tool_calls.thoughts import ends_a_thought, thought_that_ends

OPENERS = (r"`(?<!``)``++[^`\n]*+(?=\n)", r"~(?<!~~)~~++[^\n]*+(?=\n)")

_FENCE = re.compile(r"(?P<run>`++|~++)(?P<info>.*+)")
_LANGUAGE = re.compile(r"\s*+\{?\s*+\.?([A-Za-z_]++)(?![\w+#-])")
_BASH = frozenset({"bash", "sh", "shell", "zsh", "mswea_bash_command"})
_MARKDOWN = frozenset({"markdown", "md"})
_ANSWERS = frozenset({"", "json"})
"""Languages of a block that may be the whole answer of an agent."""
_DISCUSSION = re.compile(r"[\s*#]*+(?i:discussion|thoughts?)[*]*+(?::|[*]*+[ \t]*+\n)")
_PREFIX = re.compile(r"[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+")
_CLOSER_AT_LINE_END = re.compile(r"`(?<!``)``++(?=[ \t]{0,20}(?:<[|\uff5c/]|\n|\Z))")
# A line with a fence at its start, and the line end before it.
_FENCE_LINE = re.compile(r"\n(?P<indent>[ \t]{0,60}+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^\n]*+)")
_NAMES_LANGUAGE = re.compile(r"[a-z]|[ \t]*\{")  # prose has a blank or a capital before it
# Behind a fence that is only a part of an argument or a pattern.
_CODE = re.compile(r"[ \t]*+['\"`]|[$|&/\\\]}=+%^]")

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


def read_fence(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read a block from its opening fence on; None for backticks within a line.

    A bash fence behind text on its line also opens a block, if a closing fence comes next.
    """
    prefix = reply.line_prefix(opener.start())
    fence = _FENCE.match(reply.text, opener.start())
    assert fence is not None
    if prefix is not None and _PREFIX.fullmatch(prefix):
        return _Block(reply, fence, indent=len(prefix)).read()
    is_quotation = prefix is not None and prefix.lstrip().startswith(">")
    closer = reply.next(_FENCE_LINE, opener.end())
    if is_quotation or _language(fence) not in _BASH or not (closer and _closes(closer)):
        return None
    return _Block(reply, fence, indent=0).read()


class _Block:
    """A block while it is read, from one line that starts with a fence to the next.

    In a block of bash, a fence in a here-document is text, and another block's opening fence ends
    it unclosed. Other blocks may hold blocks: `inner_opener` and `inner_closer` are the first such
    fences, at which the block ended if no fence is left to close it.
    """

    def __init__(self, reply: ReplyText, opener: re.Match[str], indent: int) -> None:
        self._reply, self._opener, self._indent = reply, opener, indent
        self._language = _language(opener)
        self._is_bash = self._language in _BASH

    def read(self) -> Reading:
        reply, start = self._reply, self._opener.end()
        position, depth = start, 0
        inner_opener = inner_closer = None
        while line := reply.next(_FENCE_LINE, position):
            position = line.end()
            if not self._is_ours(line):
                continue
            if self._is_bash and (end := reply.heredoc_end_around(start, line.start())):
                position = end
            elif _NAMES_LANGUAGE.match(line["info"]):
                if ended := thought_that_ends(reply, start, line.start()):
                    return ended
                if self._is_bash:
                    return self._closed_within_line(line.start()) or Reading(line.start())
                inner_opener = inner_opener or line
                depth += 1
            elif _closes(line) and depth == 0:
                ended = self._closed_within_line(line.start())
                return ended or self._closed(line.start(), line.end("run"))
            elif _closes(line):
                inner_closer = inner_closer or line
                depth -= 1
        end = len(reply.text)
        if ended := thought_that_ends(reply, start, end) or self._closed_within_line(end):
            return ended
        if inner_opener and self._language not in _MARKDOWN and _language(inner_opener) in _BASH:
            return Reading(inner_opener.start())
        if inner_closer:
            return self._closed(inner_closer.start(), inner_closer.end("run"))
        return reply.cut_off

    def _closed_within_line(self, end: int) -> Reading | None:
        """The block if a fence behind the last command on its line closes it, which none in a
        here-document does."""
        reply, position = self._reply, self._opener.end()
        while self._is_bash and (match := _CLOSER_AT_LINE_END.search(reply.text, position, end)):
            heredoc_end = reply.heredoc_end_around(position, match.start())
            if heredoc_end is None and match[0].startswith(self._opener["run"]):
                return self._closed(match.start(), match.end())
            position = heredoc_end or match.end()
        return None

    def _closed(self, end: int, after: int) -> Reading:
        body = self._reply.text[self._opener.end() + 1 : end]
        if not self._is_bash:
            return Reading(after, self._answer(body, after) if self._language in _ANSWERS else ())
        if self._indent:
            body = re.sub(rf"(?m)^[ \t]{{1,{self._indent}}}+", "", body)
        return Reading(after, bash_calls(body, "fenced"))

    def _answer(self, body: str, after: int) -> list[ToolCall]:
        """The calls of a reply's one block, at its end: JSON, or a command behind a discussion, as
        SWE-agent's prompts want it."""
        text, floor = self._reply.text, self._reply.floor
        if (floor and not ends_a_thought(text, floor)) or text[after:].strip():
            return []
        if not self._language and _DISCUSSION.match(text[floor : self._opener.start()]):
            return bash_calls(body, "fenced")
        return calls_of_answer(body)

    def _is_ours(self, line: re.Match[str]) -> bool:
        """Whether a line's fence could close this block or open one within it."""
        is_long = line["run"].startswith(self._opener["run"])
        return is_long and len(line["indent"]) <= self._indent + 3


def _language(fence: re.Match[str]) -> str:
    match = _LANGUAGE.match(fence["info"])
    return match[1].lower() if match else ""


def _closes(line: re.Match[str]) -> bool:
    """Whether the line can close a block: nothing or prose follows its fence."""
    return not _NAMES_LANGUAGE.match(line["info"]) and not _CODE.match(line["info"])


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
