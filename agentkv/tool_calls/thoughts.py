"""Decides which part of a reply is thinking, from tags such as `<think>`.

A thought opens outside of blocks and calls, at the start of a line or behind a label or a whole
sentence. A chat template may have opened it in the prompt, so that a reply shows only its end. A
tag in quotes, or in the middle of a sentence, is a mention. Called by the scanner, and by readers
whose call was not closed as it should be.
"""

from __future__ import annotations

import re
from functools import lru_cache

from agentkv.tool_calls.reply_text import Reading, ReplyText

# Hunyuan's tags have a suffix, such as `<think:opensource>`.
_NAMES = r"(?:(?:seed|antml|mm):)?(?:think|thinking|thought|reasoning)(?::\w{1,40}+)?"
_ATTRIBUTES = r"(?:[ \t]{1,4}+[\w-]{1,40}+=[^<>\n]{0,200}+)?"
_CLOSER_TEXTS = {
    "[THINK]": "[/THINK]",  # Mistral
    "<|START_THINKING|>": "<|END_THINKING|>",  # Cohere
    "<|begin_of_thought|>": "<|end_of_thought|>",  # OpenThinker, Sky-T1
    "<|channel>thought": "<channel|>",  # Gemma 4
    "<|open|>think<|sep|>": "<|close|>think<|sep|>",  # Kimi K3
    "<|plamo:begin_think:plamo|>": "<|plamo:end_think:plamo|>",
    "\u25c1think\u25b7": "\u25c1/think\u25b7",  # Kimi-VL, Kimi-Dev
}
OPENERS = (rf"<(?i:{_NAMES}){_ATTRIBUTES}>", *map(re.escape, _CLOSER_TEXTS))
CLOSERS = (rf"</(?i:{_NAMES})>", *map(re.escape, _CLOSER_TEXTS.values()))
_OPENER = re.compile("|".join(OPENERS))
_CLOSER = re.compile("|".join(CLOSERS))
_MAX_CLOSER_CHARS = 80
_QUOTES = frozenset("'\"`")
_IN_PATTERNS = frozenset("$|)/\\],;.*+?([")
_IN_A_SENTENCE = re.compile(r"[ \t]+[a-z]|[.,;:?)]")
_NAME = re.compile(r"<([\w:]+)")
# No abbreviation such as `e.g.`, and no ellipsis in the middle of a sentence.
_END_OF_SENTENCE = re.compile(r"[^\s.][^\s.][.!?]['\")*_]{0,3}[ \t]{0,4}\Z")
_LABEL = re.compile(r"\W*+\w++\*{0,2}:\W*+")


def end_of_thought(reply: ReplyText, opener: re.Match[str]) -> int | None:
    """The end of the thought that a tag opens; None if the reply was cut off within it.

    The first closing tag of its kind ends it, since templates and models often open one thought
    twice. If two thoughts were nested, the second closing tag makes all before it thinking.
    """
    closer = _closer_of(opener[0])
    start = opener.end()
    while match := reply.next(closer, start):
        if not _is_quoted(reply.text, match.start(), match.end()):
            return match.end()
        start = match.end()
    return None


def opens_within_line(reply: ReplyText, opener: re.Match[str]) -> bool:
    """Whether a tag behind text on its line opens a thought even if nothing closes it.

    It does behind a label or a whole sentence, and if text follows the tag without a blank, as a
    mention has one.
    """
    text, start = reply.text, opener.start()
    if ends_a_sentence(text, start):
        return True
    if text[start - 1] in " \t" and text[opener.end() : opener.end() + 1].isalpha():
        return True
    return _LABEL.fullmatch(text, 0, min(start, 40)) is not None and start <= 40


def ends_a_sentence(text: str, index: int) -> bool:
    """Whether a whole sentence ends before `index`."""
    return _END_OF_SENTENCE.search(text, max(0, index - 12), index) is not None


def thought_that_ends(reply: ReplyText, start: int, end: int) -> Reading | None:
    """The end of a thought between `start` and `end` that opened before `start`, else None.

    Asked for a call or block that is not closed as it should be: the thought only mentioned it.
    """
    closer = reply.next(_CLOSER, start)
    if closer is None or closer.end() > end:
        return None
    opener = reply.next(_OPENER, start)
    opens_within = opener is not None and opener.start() < closer.start()
    if opens_within or is_mention(reply.text, closer.start(), closer.end()):
        return None
    return Reading(closer.end(), is_end_of_thought=True)


def ends_a_thought(text: str, index: int) -> bool:
    """Whether a tag that ends a thought stands right before `index`."""
    tags = _CLOSER.finditer(text, max(0, index - _MAX_CLOSER_CHARS), index)
    return any(tag.end() == index for tag in tags)


def is_mention(text: str, start: int, end: int) -> bool:
    """Whether the tag between `start` and `end` is quoted or part of a sentence."""
    if _is_quoted(text, start, end):
        return True
    return text[start - 1 : start] == " " and _IN_A_SENTENCE.match(text, end) is not None


def _is_quoted(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start] if start else "", text[end : end + 1]
    if after in _QUOTES:
        return not text.startswith("```", end)
    return before in _QUOTES and after in _IN_PATTERNS


@lru_cache(maxsize=64)
def _closer_of(opener: str) -> re.Pattern[str]:
    tag = _NAME.match(opener)
    closer = f"</{tag[1].lower()}>" if tag else _CLOSER_TEXTS[opener]
    return re.compile(re.escape(closer), re.IGNORECASE)
