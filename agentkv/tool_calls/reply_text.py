"""A reply's text while it is read: searches that never look at the same stretch twice.

Every reader asks the same questions, such as where the next closing tag stands. The answers are
kept, so that a reply of many openers and no closer costs one search for the closer, not many.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from agentkv.tool_calls.call import ToolCall

MAX_SEARCHES = 5_000
"""Closing tags and fences looked for per reply; in one that has more, what follows is not closed.
It bounds the time of noise: an agent's reply needs a handful."""
MAX_JSON, MAX_BROKEN_JSON = 3_000, 100
"""JSON values decoded per reply, and how many of them may be broken: each of those may cost the
depth of the stack."""
_MAX_ENDS = 10_000
_MAX_TOKENS_AT_END = 8
_PREFIX_CHARS = 80
_DECODER = json.JSONDecoder(strict=False)
# What ends a here-document is nearly always a line of one word, else a short one.
_WORD = re.compile(r"[\w.!@+%:/=~^-]{1,64}+")
_LINE_OF_A_WORD = re.compile(rf"\n[ \t]{{0,64}}+({_WORD.pattern})(?=[ \t]{{0,64}}(?:\n|\Z))")
_SHORT_LINE = re.compile(r"\n[ \t]{0,64}+(\S[^\n]{0,80}+)(?=\n|\Z)")
_SPECIAL_TOKEN_END = re.compile(r".*[|\uff5c]>")
_END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|user|>",
    "<|observation|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "<seed:eos>",
    "</s>",
    "[e~[",
)
"""What ends a turn, as servers that keep special tokens decode it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader made of an opener: the calls, and where the text after them begins.

    is_end_of_thought: all that stands before `end` turned out to be thinking.
    """

    end: int
    calls: Sequence[ToolCall] = ()
    is_end_of_thought: bool = False


class ReplyText:
    """The text of one reply, and how far its reading is.

    `floor` is up to where it has been read, `num_unbalanced` how many values were read in vain.
    """

    def __init__(self, text: str) -> None:
        self.text = without_end_tokens(text.replace("\r\n", "\n"))
        self.floor = 0
        self.num_unbalanced = 0
        self._found: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}
        self._num_json = self._num_broken = 0
        self._num_searches = 0

    @property
    def cut_off(self) -> Reading:
        """For a call or a thought that is never closed: nothing after its opener counts."""
        return Reading(len(self.text))

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match at or after `start`, remembered: linear in all for growing starts."""
        self._num_searches += 1
        if self._num_searches > MAX_SEARCHES:
            return None
        known = self._found.get(pattern)
        if known and known[0] <= start and (known[1] is None or start <= known[1].start()):
            return known[1]
        match = pattern.search(self.text, start)
        self._found[pattern] = (start, match)
        return match

    def json_at(self, start: int) -> tuple[object, int] | None:
        """The JSON value that starts there and where it ends; None if it is broken."""
        self._num_json += 1
        if self._num_json > MAX_JSON or self._num_broken >= MAX_BROKEN_JSON:
            return None
        try:
            return _DECODER.raw_decode(self.text, start)
        except (ValueError, RecursionError):
            self._num_broken += 1
            return None

    def line_prefix(self, index: int) -> str | None:
        """What stands before `index` on its line and is unread yet; None if that is much.

        A special token of the chat template counts as the start of a line.
        """
        low = max(self.floor, index - _PREFIX_CHARS)
        newline = self.text.rfind("\n", low, index)
        if newline < 0 and low > self.floor:
            return None
        prefix = self.text[max(newline + 1, low) : index]
        token_end = _SPECIAL_TOKEN_END.match(prefix)
        return prefix[token_end.end() :] if token_end else prefix

    def is_at_line_start(self, index: int) -> bool:
        """Whether only blanks stand before it on its line."""
        prefix = self.line_prefix(index)
        return prefix is not None and not prefix.strip()

    def heredoc_end(self, delimiter: str, start: int) -> int | None:
        """Where the line ends that closes a here-document open at `start`; None if none does."""
        delimiter = delimiter.strip()
        lines = self._lines_of_a_word if _WORD.fullmatch(delimiter) else self._short_lines
        ends = lines.get(delimiter, ())
        index = bisect_left(ends, start)
        return ends[index] if index < len(ends) else None

    @cached_property
    def _lines_of_a_word(self) -> Mapping[str, Sequence[int]]:
        return self._ends_of(_LINE_OF_A_WORD)

    @cached_property
    def _short_lines(self) -> Mapping[str, Sequence[int]]:
        return self._ends_of(_SHORT_LINE)

    def _ends_of(self, line: re.Pattern[str]) -> Mapping[str, Sequence[int]]:
        ends: dict[str, list[int]] = {}
        for match in islice(line.finditer(self.text), _MAX_ENDS):
            ends.setdefault(match[1].rstrip(), []).append(match.end())
        return ends


def without_end_tokens(text: str) -> str:
    """The text without the tokens that end a turn, and without the blanks around them."""
    for _ in range(_MAX_TOKENS_AT_END):
        stripped = text.rstrip()
        if not stripped.endswith(_END_TOKENS):
            break
        text = next(stripped.removesuffix(end) for end in _END_TOKENS if stripped.endswith(end))
    return text
