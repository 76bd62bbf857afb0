"""What a shell takes as a text of its own: quotes and here-documents hide fences and tags in them.

A command is read once from where it starts, as far as it is asked.
"""

from __future__ import annotations

import re

from agentkv.commands.heredocs import HEREDOC_OPENER
from agentkv.tool_calls.reply_text import ReplyText

MAX_SPANS = 10_000
"""Quotes, escapes, comments and here-documents read of one command: one that has more is noise."""

# Escapes, comments and closed quotes come first: an open quote is what is left.
_SPAN = re.compile(
    r"\\.|(?<![^\s;&|()])#[^\n]*+|\$'[^'\\]*+(?:\\.[^'\\]*+)*+'|'[^']*+'"
    r"|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|(?P<open>['\"])"
    rf"|(?P<heredoc>{HEREDOC_OPENER.pattern})",
    re.DOTALL,
)


class ShellQuotes:
    """The quotes and here-documents of the command that starts at `start`."""

    def __init__(self, reply: ReplyText, start: int) -> None:
        self._reply = reply
        self._start = start
        self._begin = self._end = start
        self._is_quote = False
        self._num_spans = 0

    def is_quoted(self, index: int) -> bool:
        """Whether a quote is open there. Linear in all for growing places."""
        return self.hides(index) and self._is_quote

    def hides(self, index: int) -> bool:
        """Whether a quote or a here-document is open there."""
        if index < self._begin:
            self._begin = self._end = self._start
        while self._end <= index:
            if not self._read_next(index):
                return False
        return self._begin < index

    def _read_next(self, index: int) -> bool:
        """Goes on to the next span; False if none starts before `index`."""
        text = self._reply.text
        span = _SPAN.search(text, self._end, index)
        self._num_spans += 1
        if span is None or self._num_spans > MAX_SPANS:
            return False
        # where the end of a quote is not to be seen before `index`, it is behind it
        whole = _SPAN.match(text, span.start()) if span["open"] else span
        assert whole is not None
        self._begin, self._end = whole.span()
        self._is_quote = whole[0][-1] in "'\"" and whole["heredoc"] is None
        if whole["open"]:
            self._end = len(text) + 1
        elif whole["heredoc"]:
            self._end = self._reply.heredoc_end(whole["delimiter"], whole.end()) or whole.end()
        return True
