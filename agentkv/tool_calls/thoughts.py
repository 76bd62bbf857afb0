"""Which part of a reply is thinking: tags around it, or only the closing one.

A thought opens at the start of a line, outside of blocks and calls. A chat template may have
opened it in the prompt, so that a reply shows its end alone. A tag in quotes, or in the middle of
a sentence, is one that the model talks about.
"""

from __future__ import annotations

import re

from agentkv.tool_calls.reply_text import Reading, ReplyText

_NAMES = r"(?:(?:seed|antml|mm):)?(?:think|thinking|thought|reasoning)"
OPENERS = (rf"<(?i:{_NAMES})>", r"\[THINK\]", r"<\|START_THINKING\|>")
CLOSERS = (rf"</(?i:{_NAMES})>", r"\[/THINK\]", r"<\|END_THINKING\|>")
_OPENER = re.compile("|".join(OPENERS))
_CLOSER = re.compile("|".join(CLOSERS))
_QUOTES = frozenset("'\"`")
_IN_PATTERNS = frozenset("$|)/\\],;.*+?([")
_IN_A_SENTENCE = re.compile(r"[ \t]+[a-z]|[.,;:?)]")
_CLOSER_TEXTS = {"[THINK]": "[/THINK]", "<|START_THINKING|>": "<|END_THINKING|>"}
_CLOSERS: dict[str, re.Pattern[str]] = {}


def end_of_thought(reply: ReplyText, opener: re.Match[str]) -> int | None:
    """Where the thought ends that this tag opens; None if the reply was cut off within.

    The first tag of its kind closes it, since templates and models often open the same thought
    twice; where two thoughts were nested, the second closer says that all before was thought.
    """
    closer = _closer_of(opener[0])
    start = opener.end()
    while match := reply.next(closer, start):
        if not _is_quoted(reply.text, match.start(), match.end()):
            return match.end()
        start = match.end()
    return None


def thought_that_ends(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought between `start` and `end` that does not open there; else None.

    Asked where something opened and was not closed as it should: a thought only spoke of it.
    """
    closer = reply.next(_CLOSER, start)
    if closer is None or closer.end() > end:
        return None
    opener = reply.next(_OPENER, start)
    if opener and opener.start() < closer.start():
        return None
    if is_mention(reply.text, closer.start(), closer.end()):
        return None
    return Reading(closer.end(), is_end_of_thought=True)


def is_mention(text: str, start: int, end: int) -> bool:
    """Whether the tag between `start` and `end` is quoted, or a word of a sentence."""
    if _is_quoted(text, start, end):
        return True
    return text[start - 1 : start] == " " and _IN_A_SENTENCE.match(text, end) is not None


def _is_quoted(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    if after in _QUOTES:
        return not text.startswith("```", end)
    return before in _QUOTES and after in _IN_PATTERNS


def _closer_of(opener: str) -> re.Pattern[str]:
    name = opener.lower()
    if name not in _CLOSERS:
        closer = _CLOSER_TEXTS.get(opener, f"</{name[1:]}")
        _CLOSERS[name] = re.compile(re.escape(closer), re.IGNORECASE)
    return _CLOSERS[name]
