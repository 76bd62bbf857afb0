"""A reply's text while it is read: searches that never look at the same stretch twice.

All readers ask the same questions: where is the next closing tag, does a here-document or a quote
hide it? Answers are kept, so that a reply of many openers and no closer costs one search for the
closer. Knows nothing of dialects.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from agentkv.commands.analysis import HEREDOC_OPENER
from agentkv.tool_calls.call import ToolCall

MAX_SEARCHES = 5_000
"""Closing tags and fences searched per reply, after which none is found. It bounds the time of
noise: an agent's reply needs a handful."""
MAX_JSON, MAX_BROKEN_JSON = 3_000, 100
"""JSON values decoded per reply, and how many of them may be broken: a broken one may cost the
whole depth of the stack."""
_MAX_HEREDOCS = 500
"""Here-documents looked at between two fences or tags."""
_MAX_LINES = 10_000
_MAX_TOKENS_AT_END = 8
_PREFIX_CHARS = 80
_DECODER = json.JSONDecoder(strict=False)
_SHORT_LINE = re.compile(r"\n[ \t]{0,64}+(\S[^\n]{0,80}+)(?=\n|\Z)")
_SPECIAL_TOKEN_END = re.compile(r".*[|\uff5c]>")
_END_TOKENS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>"),
    *("<|return|>", "<|user|>", "<|observation|>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    *("<end_of_turn>", "<turn|>", "<|tool_response>", "<eos>", "<seed:eos>", "</s>", "[e~["),
)
"""Tokens that end a turn, as servers that keep special tokens decode them."""
# What is left of a closing tag or token when the reply ends within it. None holds a brace, with
# which complete JSON ends: `{"command": "[<0"}`.
_PART_OF_TAG = re.compile(r"(?<=[\n>\[\]}])[ \t]{0,20}<(?:[/|\uff5c\w][^<>\n}]{0,60})?\Z")
_JSON_SIGN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]]', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class Reading:
    """A reader's result: the calls, and the index at which the text after them begins.

    is_end_of_thought: all text before `end` was thinking.
    """

    end: int
    calls: Sequence[ToolCall] = ()
    is_end_of_thought: bool = False


class ReplyText:
    """The text of one reply and the progress of its reading.

    `floor` is the index up to which it has been read.
    """

    def __init__(self, text: str) -> None:
        text = _without_end_tokens(text.replace("\r\n", "\n"))
        part = _PART_OF_TAG.search(text, max(0, len(text) - 100))
        self.text = text[: part.start()] if part else text
        self.floor = 0
        self._found: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}
        self._line_ends: dict[str, list[int]] | None = None
        self._num_json = self._num_broken = 0
        self._num_searches = 0

    @property
    def cut_off(self) -> Reading:
        """The reading of a call or thought that is never closed: it takes up the rest."""
        return Reading(len(self.text))

    def next(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match at or after `start`, remembered: linear in total for growing starts."""
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
        """The JSON value at `start` and the index of its end; None if it is broken.

        Closing brackets may be missing at the end of the reply.
        """
        self._num_json += 1
        if self._num_json > MAX_JSON or self._num_broken >= MAX_BROKEN_JSON:
            return None
        try:
            return _DECODER.raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            self._num_broken += 1
            is_open = error.msg.startswith("Expecting ','") and not self.text[error.pos :].strip()
            return self._closed_json(start) if is_open else None
        except (ValueError, RecursionError):
            self._num_broken += 1
            return None

    def _closed_json(self, start: int) -> tuple[object, int] | None:
        """The JSON value that takes up the rest of the reply, its open brackets closed."""
        closing: list[str] = []
        for sign in _JSON_SIGN.finditer(self.text, start):
            if sign[0] in _CLOSING:
                closing.append(_CLOSING[sign[0]])
            elif closing and sign[0] == closing[-1]:
                closing.pop()
        value = json_or_text(self.text[start:] + "".join(reversed(closing)))
        return None if isinstance(value, str) else (value, len(self.text))

    def line_prefix(self, index: int) -> str | None:
        """The unread text before `index` on its line; None if it is long.

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
        """Whether only blanks stand before `index` on its line."""
        prefix = self.line_prefix(index)
        return prefix is not None and not prefix.strip()

    def heredoc_end(self, delimiter: str, start: int) -> int | None:
        """The end of the line that closes a here-document open at `start`; None if none does."""
        if self._line_ends is None:
            self._line_ends = {}
            for line in islice(_SHORT_LINE.finditer(self.text), _MAX_LINES):
                self._line_ends.setdefault(line[1].rstrip(), []).append(line.end())
        ends = self._line_ends.get(delimiter.strip(), ())
        index = bisect_left(ends, start)
        return ends[index] if index < len(ends) else None

    def heredoc_end_around(self, start: int, index: int) -> int | None:
        """The end of the here-document that opens after `start` and holds `index`, else None.

        Several may open on one line; one whose delimiter no later line consists of is none.
        """
        if self.text.find("<<", start, index) < 0:
            return None
        read_to = line_end = start
        for opener in islice(HEREDOC_OPENER.finditer(self.text, start, index), _MAX_HEREDOCS):
            if line_end < opener.start() < read_to:
                continue
            end = self.heredoc_end(opener["delimiter"], max(opener.end(), read_to))
            if end is None:
                continue
            if end > index:
                return end
            if opener.start() > line_end:
                line_end = self.text.find("\n", opener.end())
            read_to = end
        return None

    def next_outside_heredocs(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match in no here-document that opens after `start`."""
        position = start
        while match := self.next(pattern, position):
            end = self.heredoc_end_around(start, match.start())
            if end is None:
                return match
            position = end
        return None

    def opens_unclosed_heredoc(self, start: int, end: int) -> bool:
        """Whether a here-document opens between `start` and `end` whose delimiter never follows."""
        openers = islice(HEREDOC_OPENER.finditer(self.text, start, end), _MAX_HEREDOCS)
        return any(
            self.heredoc_end(opener["delimiter"], opener.end()) is None for opener in openers
        )


def json_or_text(text: str) -> object:
    """The value of a JSON text; the text itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _without_end_tokens(text: str) -> str:
    """The text without the tokens that end a turn and the blanks around them."""
    for _ in range(_MAX_TOKENS_AT_END):
        stripped = text.rstrip()
        if not stripped.endswith(_END_TOKENS):
            break
        text = next(stripped.removesuffix(end) for end in _END_TOKENS if stripped.endswith(end))
    return text
