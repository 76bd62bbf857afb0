"""Where a prompt leaves what the turn before left in the cache, and what became of the text there.

Without `show_prompts` the place is a block, found by hashes, and its position gives the kind.
With it the tokens of the last turn are at hand: the place is exact, and a background thread decodes
a few words around it. Called by MissWatcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .explanations import Change, Divergence

MAX_REWRITTEN_TOKENS = 4
"""Tokens at the end of a prompt that belong to the reply: a template opens a thought there."""
WINDOW_TOKENS = 96
"""Tokens decoded before and after the first difference."""
SHOWN_CHARS = 60
"""Characters shown before it, and of each of both texts."""
REPLY_TOKENS = 2048
"""Tokens of the last reply, and as many of the prompt, searched for the end of thoughts."""
SHIFT_TOKENS = 16
"""An edit adds or removes at most this many tokens."""
EDIT_TOKENS = 32
"""An edit is over after this many tokens."""
SAME_SHARE = 0.05
"""Share of tokens that may differ between two orders of one list."""
END_OF_THOUGHTS = "</think>"


@dataclass(frozen=True, slots=True)
class Difference:
    """The last turn's prompt, of which the job's first turn had `first_prompt_tokens`, with its
    reply, and the prompt that differs from it at token `at`."""

    at: int
    known: Sequence[int]
    num_prompt_tokens: int
    first_prompt_tokens: int
    prompt: Sequence[int]

    def described(self, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Decode a few words of both texts, as they are, and tell what has changed.

        Takes milliseconds, and on the first call the seconds in which the tokenizer loads.
        """
        first, last = max(0, self.at - WINDOW_TOKENS), self.at + WINDOW_TOKENS
        was, now = (
            decode(list(islice(tokens, first, last))) for tokens in (self.known, self.prompt)
        )
        start = first_difference(was, now, 0)
        word = max(was.rfind(" ", 0, start), was.rfind("\n", 0, start)) + 1
        return {
            "text_before": was[max(0, word - SHOWN_CHARS) : word],
            "text_was": was[word : word + SHOWN_CHARS],
            "text_now": now[word : word + SHOWN_CHARS],
            "change": self._change(decode),
        }

    def _change(self, decode: Callable[[list[int]], str]) -> Change | None:
        if self.at >= self.num_prompt_tokens - MAX_REWRITTEN_TOKENS:
            reply, repeated = (
                decode(list(islice(tokens, self.num_prompt_tokens, end)))
                for tokens, end in (
                    (self.known, self.num_prompt_tokens + REPLY_TOKENS),
                    (self.prompt, self.num_prompt_tokens + REPLY_TOKENS),
                )
            )
            is_stripped = END_OF_THOUGHTS in reply and END_OF_THOUGHTS not in repeated
            return "thinking" if is_stripped else None
        if self.at < self.first_prompt_tokens:
            return "edited" if self._goes_on() else "reordered" if self._is_reordered() else None
        return None

    def _goes_on(self) -> bool:
        """True if the text goes on as before after the edit."""
        start = self.at + EDIT_TOKENS
        after = list(islice(self.known, start, start + EDIT_TOKENS))
        return len(after) == EDIT_TOKENS and any(
            list(islice(self.prompt, start + shift, start + shift + EDIT_TOKENS)) == after
            for shift in range(-SHIFT_TOKENS, SHIFT_TOKENS + 1)
        )

    def _is_reordered(self) -> bool:
        """True if the rest of the first turn's prompt has nearly the same tokens."""
        was, now = (
            Counter(islice(tokens, self.at, self.first_prompt_tokens))
            for tokens in (self.known, self.prompt)
        )
        return (was - now).total() <= SAME_SHARE * was.total()


def first_difference(known: Sequence[object], prompt: Sequence[object], start: int) -> int:
    """Index of the first item that differs, given that those before `start` are equal."""
    end = min(len(known), len(prompt))
    return next((at for at in range(start, end) if known[at] != prompt[at]), end)


def kind_of_divergence(
    *,
    at: int,
    within: int,
    num_prompt_tokens: int,
    last_prompt_tokens: int,
    first_prompt_tokens: int,
    has_other_keys: bool,
) -> Divergence:
    """What the place tells, which is one of the `within` tokens from `at` on."""
    if has_other_keys:
        return "cache_keys"
    if at + max(within, MAX_REWRITTEN_TOKENS) > last_prompt_tokens:
        return "reply"
    if num_prompt_tokens < last_prompt_tokens:
        return "compacted"
    return "start" if at < first_prompt_tokens else "history"
