"""Finds where a text may be cut so that its parts have the ids of the whole.

A special token is such a place if the tokenizer takes it out of every text, next to any other
text. Knows the `tokenizers` library's rules for added tokens, and nothing of vLLM.

Source: tokenizers 0.23, `AddedVocabulary.extract_and_normalize`: added tokens that are not
normalised are found in the raw text, leftmost and longest first, and what is between two of them is
normalised, split and encoded by itself.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MAX_BOUNDARIES = 1024
"""Special tokens that are tried, those of the chat template first: a few ms at start."""
NUM_TRIALS = 1000
"""Cuts between adversarial texts that are tried at start: about 0.1 s."""

_PIECES = (
    "| | ||\n|\n\n|\r\n|\t|\u00a0|\u2003|\u200b|\ufeff|\u3000|a|a |A\u0301|e\u0301|\u0301|\u0308x"
    "|\ufb01|\u00bd|\u2460|\u0130|\u00df|\u017f|'s| 's|n't|1234| 12|\u0663|\u2581|\u2581\u2581x"
    "|\u0120|\u010a|##ab|<0x0A>|</s>x|<|[|]|[IN|<s|<im_end|\uff5c|<\uff5c|\uff1c\uff5cim_end\uff5c\uff1e|&lt;|"
    "\u6f22\u5b57|\u304b\u306a|\ud55c\uad6d\uc5b4|\u0e44\u0e17\u0e22|\u0939\u093f\u0928\u094d|"
    "\u05e9\u05dc\u05d5\u05dd|\u0645\u0631 \u200f|\u202e abc|e\u200dx|\U0001f469\u200d\U0001f467|"
    "\U0001f1e9\U0001f1ea|\U0001f3fd|\ufe0f|\x00|\x1b[0m|\x7f|\ufffd|\U0010ffff|def f():\n|"
    '{"a": [1, 2]}|http://x.y/z?q=1|ABCdefGHI'
)
ADVERSARIAL = (*_PIECES.split("|"), "<|", "|>", "\uff5c>", "x" * 300, " " * 40, "\n" * 9, "--" * 20)
"""Pieces of text that tokenizers treat in ways of their own."""


class Cut(NamedTuple):
    """A place in a text where a part begins, and the special token that stands there."""

    at: int
    token_id: int


@dataclass(frozen=True)
class Boundaries:
    """The special tokens before which a text may be cut."""

    pattern: re.Pattern[str]
    ids: dict[str, int]

    def cuts(self, text: str, min_chars: int) -> list[Cut]:
        """Return where `text` is cut into parts of at least `min_chars`; the last may be shorter.

        No special token here overlaps another or itself, so that a search which begins anywhere
        finds only what the tokenizer finds as well.
        """
        found: list[Cut] = []
        search, ids = self.pattern.search, self.ids
        match = search(text, min_chars)
        while match is not None:
            found.append(Cut(match.start(), ids[match.group()]))
            match = search(text, match.start() + min_chars)
        return found


def find_boundaries(tokenizer: Any) -> Boundaries | None:
    """Return the special tokens that cut every text, or None if this tokenizer has none.

    Takes a fast tokenizer of transformers. A token that strips or asks for blanks or word ends
    next to it, that is looked for after normalisation, or that another one may overlap, is none.
    """
    if getattr(tokenizer, "split_special_tokens", False):
        return None
    added = tokenizer.added_tokens_decoder
    raw = [token.content for token in added.values() if not token.normalized and token.content]
    overlapped = _overlapped(raw)
    ids = {
        token.content: token_id
        for token_id, token in added.items()
        if token.content
        and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        and token.content == token.content.strip()
        and token.content not in overlapped
    }
    template = str(getattr(tokenizer, "chat_template", None) or "")
    chosen = sorted(ids, key=lambda text: (text not in template, ids[text]))[:MAX_BOUNDARIES]
    if not chosen:
        return None
    return Boundaries(re.compile(_pattern_of(sorted(chosen))), {text: ids[text] for text in chosen})


def _overlapped(texts: Sequence[str]) -> set[str]:
    """Return the texts that are inside another one, or begin with the end of one.

    Such a text may stand in a prompt without being found there: what overlaps it was found first.
    """
    inside: set[str] = set()
    ends: set[str] = set()
    lengths = {len(text) for text in texts}
    for text in texts:
        ends.update(text[start:] for start in range(1, len(text)))
        for length in lengths:
            if length < len(text):
                inside.update(
                    text[start : start + length] for start in range(len(text) - length + 1)
                )
    return {
        text
        for text in texts
        if text in inside or any(text[:length] in ends for length in range(1, len(text) + 1))
    }


def _pattern_of(texts: Iterable[str]) -> str:
    """Return a regular expression for exactly these texts, of which none begins another."""
    following: dict[str, list[str]] = {}
    for text in texts:
        if text:
            following.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(char) + _pattern_of(rest) for char, rest in following.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""


def adversarial_texts(boundaries: Boundaries, seed: int = 0) -> list[str]:
    """Parts of a text that begin with a boundary each; and all boundaries occur."""
    chance = random.Random(seed)
    texts = sorted(boundaries.ids)
    parts = [chance.choice(ADVERSARIAL)]
    for number in range(max(NUM_TRIALS, len(texts))):
        pieces = chance.choices(ADVERSARIAL, k=chance.randrange(4))
        nearly = chance.choice(texts)
        pieces += [nearly[:-1], nearly[1:], nearly.upper(), ""][number % 4 : number % 4 + 1]
        body = "".join(pieces)
        parts.append(texts[number % len(texts)] + body)
    return parts
