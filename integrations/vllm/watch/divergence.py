"""Finds where a prompt leaves what the turn before left in the cache, and what changed there.

Without `show_prompts` the place is a block, found by hashes, and its position gives the kind.
With it a background thread decodes both prompts around it, and `changes` names what has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ..retention.conversations import MAX_REWRITTEN_TOKENS
from .changes import change_between, messages_in, num_common, words_that_differ

PIECE_TOKENS = 1024
"""Tokens decoded at once, within a millisecond, so that no other thread waits for longer."""
MAX_READ_TOKENS = 65_536
"""Tokens decoded before the first difference, and of each prompt behind it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Holds a prompt that differs from the last turn's prompt and reply.

    By their block hashes it does so `within` the tokens behind the first `start`."""

    start: int
    within: int
    known: Sequence[int]
    num_prompt_tokens: int
    first_prompt_tokens: int
    prompt: Sequence[int]

    def described(self, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Tell what has changed first, and where, with a few words of both texts as they are.

        For the background thread: takes up to 0.2 s, and first the seconds of loading a tokenizer.
        """
        end = self.start + self.within
        num_same = num_common(
            *(islice(each, self.start, end) for each in (self.known, self.prompt))
        )
        if num_same == self.within:
            return {"change": "attachment"}
        return {"diverged_at": self.start + num_same, **self._facts(self.start + num_same, decode)}

    def _facts(self, at: int, decode: Callable[[list[int]], str]) -> dict[str, Any]:
        """Return what differs from token `at` on."""

        def text(tokens: Sequence[int], start: int, end: int) -> str:
            texts, end = [], min(end, len(tokens))
            for first in range(max(0, start), end, PIECE_TOKENS):
                texts.append(decode([*islice(tokens, first, min(first + PIECE_TOKENS, end))]))
                time.sleep(0)  # lets other threads run
            return "".join(texts)

        end, num_prompt = at + MAX_READ_TOKENS, self.num_prompt_tokens
        before = text(self.prompt, at - MAX_READ_TOKENS, at)
        asked = text(self.known, at, min(end, num_prompt))
        was = asked + text(self.known, max(at, num_prompt), end)
        now = text(self.prompt, at, end)
        messages = [messages_in(before + each) for each in (was, now, asked)]
        if at <= MAX_READ_TOKENS and messages[0][0].role is None and len(messages[0]) > 1:
            for each in messages:  # a system prompt may begin without a mark
                each[0] = replace(each[0], role="system")
        known, new, prompt = messages
        reply = len(prompt) - 1
        if prompt[-1].role != "assistant":  # no mark tells where the reply begins
            reply = 0 if num_prompt - at <= MAX_REWRITTEN_TOKENS else len(known)
        facts = change_between(known, new, reply, is_shorter=len(self.prompt) < num_prompt)
        if facts["kind"] == "history" and at < self.first_prompt_tokens:
            facts["kind"] = "start"
        if not was and not now:  # tokens without a text
            facts["change"] = None
            facts["kind"] = "compacted" if len(self.prompt) < num_prompt else facts["kind"]
        if at > MAX_READ_TOKENS:
            facts["message"] = None  # those before were not counted
        return {**facts, **words_that_differ(before, was, now)}
