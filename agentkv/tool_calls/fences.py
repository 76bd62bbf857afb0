"""Markdown blocks: those of bash are calls, all others are text and hide what is in them.

Called by the scanner. Not markdown-it-py: by CommonMark a block that is never closed runs to the
end and a fence in a here-document closes its block, both wrong for commands to run; it also needs
100 ms for 200 kB.
"""

from __future__ import annotations

import re

from agentkv.tool_calls.call import ToolCall, bash_calls
from agentkv.tool_calls.json_calls import calls_of_answer
from agentkv.tool_calls.reply_text import Reading, ReplyText, ShellQuotes
from agentkv.tool_calls.thoughts import ends_a_thought, thought_that_ends

OPENERS = (r"`(?<!``)``++[^`\n]*+(?=\n)", r"~(?<!~~)~~++[^\n]*+(?=\n)")

_FENCE = re.compile(r"(?P<run>`++|~++)(?P<info>.*+)")
_LANGUAGE = re.compile(r"\s*+\{?\s*+\.?([A-Za-z_]++(?:-session)?+)(?![\w+#-])")
_SESSIONS = frozenset({"bash-session", "sh-session", "shell-session", "shellsession"})
"""Without a prompt, these hold output only; a console without prompts holds only commands."""
_CONSOLES = _SESSIONS | {"console"}
_TYPED = re.compile(
    r"(?m)^(?:\([^()\n]{1,60}\)[ \t]?)?"
    r"(?:\[?[\w.-]{1,60}@[^$#%\u276f\n]{1,150}+[$#%\u276f]|[$%\u276f])[ \t]((?:.*\\\n)*+.*)"
)
"""What stands behind a prompt, with the lines that continue it."""
_BASH = _CONSOLES | {"bash", "sh", "shell", "zsh", "mswea_bash_command"}
_MARKDOWN = frozenset({"markdown", "md"})
_ANSWERS = frozenset({"", "json"})
"""Languages of a block that may be the whole answer of an agent."""
_DISCUSSION = re.compile(r"[\s*#]*+(?i:discussion|thoughts?)[*]*+(?::|[*]*+[ \t]*+\n)")
_END_OF_TEXT = re.compile(r"\s*+\Z")
_PREFIX = re.compile(r"[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)*+")
_CLOSER_AT_LINE_END = re.compile(r"`(?<!``)``++(?=[ \t]{0,20}(?:<[|\uff5c/]|\n|\Z))")
_MAX_TRIES = 10
"""Doubtful closers and quoted fences examined per block."""
_MAX_FENCES_AHEAD = 40
"""Fences behind a quoted one examined for the one that closes the block."""

# A line with a fence at its start, and the line end before it.
_FENCE_LINE = re.compile(r"\n(?P<indent>[ \t]{0,60}+)(?P<run>`{3,}+|~{3,}+)(?P<info>[^\n]*+)")
_INFO = re.compile(
    r"(?P<blank>[ \t]*+)(?P<token>(?P<language>[A-Za-z][\w+#-]*+)[^\s`]*+|\{)(?P<rest>[^\n]*+)"
)
# Nothing, or signs that prose does not have.
_ATTRIBUTES = re.compile(r"[ \t]*+(?:\Z|[^\n]*[={])")
# Behind a fence that is only a part of an argument or a pattern.
_CODE = re.compile(r"[ \t]*+['\"`]|[$|&/\\\]}=+%^]")
# Words that open a block even where prose could follow a fence that closes one.
_KNOWN_LANGUAGE = re.compile(
    r"(?i:bash|c|c\+\+|console|cpp|cs|csharp|css|csv|diff|docker|dockerfile|go|graphql|html|ini|java"
    r"|javascript|js|json|jsonc|jsx|kotlin|lua|makefile|markdown|md|mermaid|mswea_bash_command|php"
    r"|plaintext|powershell|py|python|python3|r|rb|ruby|rust|scala|scss|sh|shell|sql|swift|terraform"
    r"|text|toml|ts|tsx|txt|typescript|xml|yaml|yml|zsh)"
)


def read_fence(reply: ReplyText, opener: re.Match[str]) -> Reading | None:
    """Read a block from its opening fence on; None for backticks within a line.

    A bash fence behind text on its line also opens a block, if a closing fence comes next.
    """
    prefix = reply.line_prefix(opener.start())
    fence = _FENCE.match(reply.text, opener.start())
    assert fence is not None
    block = _Block(reply, fence, indent=len(prefix or ""))
    if prefix is not None and _PREFIX.fullmatch(prefix):
        return block.read()
    is_quotation = prefix is not None and prefix.lstrip().startswith(">")
    closer = None if is_quotation or not block.is_bash else reply.next(_FENCE_LINE, opener.end())
    block.indent = 0
    return block.read() if closer and _closes(closer) else None


class _Block:
    """A block while it is read: `position` goes from one line that starts with a fence to the next.

    In a block that is not bash, `inner_opener` is the first fence with a language and
    `inner_closer` the first without one behind it. Inner blocks are pairs of such fences; if none
    is left to close the block itself, it ended at the inner closer or, with its own closer
    missing, at the inner opener.
    """

    def __init__(self, reply: ReplyText, opener: re.Match[str], indent: int) -> None:
        self.reply = reply
        self.opener = opener
        self.indent = indent
        self.language = _language(opener)
        self.is_bash = self.language in _BASH
        self.start = self.position = opener.end()
        self.quotes = ShellQuotes(reply, self.start)
        self.inner_opener: re.Match[str] | None = None
        self.inner_closer: re.Match[str] | None = None
        self.depth = 0
        self.num_tries = 0

    def read(self) -> Reading:
        while line := self.reply.next(_FENCE_LINE, self.position):
            heredoc_end = self._heredoc_end_past(line)
            if heredoc_end is not None:
                self.position = heredoc_end
            elif reading := self._at(line):
                return reading
            else:
                self.position = max(self.position, line.end())
        return self._at_end_of_text()

    def _at(self, line: re.Match[str]) -> Reading | None:
        """The reading if a line with a fence ends the block; None if the line is part of it."""
        if self._is_ours(line) and _closes(line) and not self._is_inner_closer(line):
            if reading := self._closed_within_line(line.start()):
                return reading
            if closer := self._closer_behind_quote(line):
                self.position = closer.start()
                return None
            return self._closed(line.start(), line.end("run"))
        if not self._is_ours(line) or not _names_language(line):
            return None
        if thought := thought_that_ends(self.reply, self.position, line.start()):
            return thought
        return self._closed_within_line(line.start()) or self._at_inner_opener(line)

    def _closer_behind_quote(self, line: re.Match[str]) -> re.Match[str] | None:
        """For a fence within a quote, the fence behind that quote which closes the block.

        None if the fence is in no quote, or closes the block after all: its quote is never closed,
        or another block opens next.
        """
        if not self.is_bash or not self._is_quoted(line.start()):
            return None
        is_within_inner = True
        for _ in range(_MAX_FENCES_AHEAD):
            if (following := self.reply.next(_FENCE_LINE, line.end())) is None:
                return None
            line = following
            if not self.quotes.hides(line.start()):
                # within the quote fences come in pairs
                is_closer = not is_within_inner and self._is_ours(line) and _closes(line)
                return line if is_closer else None
            if is_within_inner and _names_language(line):
                return None
            is_within_inner = not is_within_inner
        return None

    def _at_inner_opener(self, line: re.Match[str]) -> Reading | None:
        """A block of bash ends unclosed where another opens, unless in an open quote."""
        if self.is_bash:
            pair = self.reply.next(_FENCE_LINE, line.end())
            if pair and _closes(pair) and self._is_quoted(line.start()):
                self.position = pair.end()
                return None
            return Reading(line.start())
        self.inner_opener = self.inner_opener or line
        self.depth += 1
        return None

    def _at_end_of_text(self) -> Reading:
        end = len(self.reply.text)
        if thought := thought_that_ends(self.reply, self.position, end):
            return thought
        if reading := self._closed_within_line(end):
            return reading
        inner = self.inner_opener
        if inner and self.language not in _MARKDOWN and _language(inner) in _BASH:
            return Reading(inner.start())
        if line := self.inner_closer:
            return self._closed(line.start(), line.end("run"))
        return self.reply.cut_off

    def _closed_within_line(self, end: int) -> Reading | None:
        """The block if a fence behind the last command on its line closes it.

        Such a fence does not count in a here-document, and in quotes only at the reply's end.
        """
        text, position = self.reply.text, self.position
        if not self.is_bash or self.opener["run"][0] != "`":
            return None
        while match := _CLOSER_AT_LINE_END.search(text, position, end):
            heredoc_end = self.reply.heredoc_end_around(position, match.start())
            position = match.end() if heredoc_end is None else heredoc_end
            if heredoc_end is not None or len(match[0]) < len(self.opener["run"]):
                continue
            if match.end() == len(text) or not self._is_quoted(match.start()):
                return self._closed(match.start(), match.end())
        return None

    def _closed(self, end: int, after: int) -> Reading:
        body = self.reply.text[self.start + 1 : end]
        if not self.is_bash:
            return Reading(after, self._answer(body, after) if self.language in _ANSWERS else ())
        if self.indent:
            body = re.sub(rf"(?m)^[ \t]{{1,{self.indent}}}+", "", body)
        if self.language in _CONSOLES:
            typed = _TYPED.findall(body)
            if not typed and self.language in _SESSIONS:
                return Reading(after)
            body = "\n".join(typed) or body
        return Reading(after, bash_calls(body, "fenced"))

    def _answer(self, body: str, after: int) -> list[ToolCall]:
        """The calls of a reply's one block, at its end: JSON, or a command behind a discussion, as
        SWE-agent's prompts want it."""
        reply = self.reply
        is_first = not reply.floor or ends_a_thought(reply.text, reply.floor)
        if not is_first or not _END_OF_TEXT.match(reply.text, after):
            return []
        before = reply.text[reply.floor : self.opener.start()]
        if not self.language and _DISCUSSION.match(before):
            return bash_calls(body, "fenced")
        return calls_of_answer(body)

    def _heredoc_end_past(self, line: re.Match[str]) -> int | None:
        """The end of the here-document around a fence; None if there is none, or it has no end.

        A closing fence is in none if another block of bash opens before the delimiter, which then
        belongs to that block.
        """
        if not self.is_bash:
            return None
        end = self.reply.heredoc_end_around(self.position, line.start())
        if end is None or not (self._is_ours(line) and _closes(line)):
            return end
        following = _FENCE_LINE.search(self.reply.text, line.end(), end)
        return None if following and _language(following) in _BASH else end

    def _is_ours(self, line: re.Match[str]) -> bool:
        """Whether a line's fence could close this block or open one within it."""
        return line["run"].startswith(self.opener["run"]) and len(line["indent"]) <= self.indent + 3

    def _is_inner_closer(self, line: re.Match[str]) -> bool:
        if self.depth == 0:
            return False
        self.inner_closer = self.inner_closer or line
        self.depth -= 1
        self.num_tries += 1
        return self.num_tries < _MAX_TRIES

    def _is_quoted(self, index: int) -> bool:
        self.num_tries += 1
        return self.num_tries < _MAX_TRIES and self.quotes.is_quoted(index)


def _language(fence: re.Match[str]) -> str:
    match = _LANGUAGE.match(fence["info"])
    return match[1].lower() if match else ""


def _closes(line: re.Match[str]) -> bool:
    """Whether the line can close a block: nothing or prose follows its fence."""
    return not _names_language(line) and not _CODE.match(line["info"])


def _names_language(line: re.Match[str]) -> bool:
    """Whether the line names a language, which only an opening fence does.

    Prose has a blank before it or several words. So may a language with attributes, but then it
    is a well-known one, or the attributes have signs of their own.
    """
    info = _INFO.match(line["info"])
    if info is None:
        return False
    if info["language"] is None:
        return True
    is_known = _KNOWN_LANGUAGE.fullmatch(info["language"]) is not None
    has_attributes = _ATTRIBUTES.match(info["rest"]) is not None
    if info["blank"]:
        return is_known and has_attributes
    return is_known or (has_attributes and info["token"][-1] not in ".,;:!?")
