"""Which part of a reply is thinking: tags around it, or only the closing one.

A thought opens outside of blocks and calls, at the start of a line or behind what is no part of a
sentence. A chat template may have opened it in the prompt, so that a reply shows its end alone. A
tag in quotes, or in the middle of a sentence, is one that the model talks about.
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
DRAFT_OPENERS = (r"<(?i:analysis|reflection|scratchpad)>",)
"""Elements in which prompts let a model think, but which may hold its answer as well."""

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


def opens_within_line(reply: ReplyText, opener: re.Match[str]) -> bool:
    """Whether a tag behind text on its line opens a thought even if nothing closes it.

    So it is behind a label or a whole sentence, and where text follows the tag without a blank:
    who mentions one writes on.
    """
    text, start = reply.text, opener.start()
    if _END_OF_SENTENCE.search(text, max(0, start - 12), start):
        return True
    if text[start - 1] in " \t" and text[opener.end() : opener.end() + 1].isalpha():
        return True
    return _LABEL.fullmatch(text, 0, min(start, 40)) is not None and start <= 40


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


def ends_a_thought(text: str, index: int) -> bool:
    """Whether the tag that ends a thought stands right before `index`."""
    tags = _CLOSER.finditer(text, max(0, index - _MAX_CLOSER_CHARS), index)
    return any(tag.end() == index for tag in tags)


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


@lru_cache(maxsize=64)
def _closer_of(opener: str) -> re.Pattern[str]:
    tag = _NAME.match(opener)
    closer = f"</{tag[1].lower()}>" if tag else _CLOSER_TEXTS[opener]
    return re.compile(re.escape(closer), re.IGNORECASE)
