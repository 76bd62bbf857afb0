"""Finds the end of a prompt that a reply's text needs before it.

vLLM decodes the whole prompt with a reply's first token, twice, in the API server's event loop. The
new text hangs on the last few tokens alone: what is decoded before them ends where a token of plain
ASCII begins. Knows the `tokenizers` library's decoders, and nothing of vLLM.

Source: tokenizers 0.23, `step_decode_stream`; the decoders ByteLevel, Metaspace, and what
SentencePiece models get (Replace, ByteFallback, Fuse, Strip).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

MIN_TAIL_TOKENS = 16
MAX_TAIL_TOKENS = 512
"""Without a token to begin at among this number the whole prompt is taken."""
NUM_TRIALS = 100

_DECODERS = frozenset({"ByteLevel", "Metaspace"})
_SENTENCEPIECE = frozenset({"Replace", "ByteFallback", "Fuse", "Strip"})
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_UNFINISHED = "\ufffd"


class PromptTails:
    """Finds tails for one fast tokenizer of transformers; `is_on` says whether it may be done."""

    def __init__(self, tokenizer: Any) -> None:
        self._rust = tokenizer.backend_tokenizer
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._is_clean: dict[int, bool] = {}
        self.is_on = _is_local(self._rust.decoder) and self._decodes_the_same()

    def tail_of(self, prompt_ids: Sequence[int], *, skip_special_tokens: bool) -> list[int] | None:
        """Return the end of a prompt after which every reply has the same text; None: all of it."""
        last = len(prompt_ids) - MIN_TAIL_TOKENS
        for start in range(last, max(0, last - MAX_TAIL_TOKENS), -1):
            if self._begins_a_text(prompt_ids[start]):
                tail = list(prompt_ids[start:])
                text = self._rust.decode(tail, skip_special_tokens=skip_special_tokens)
                return None if not text or text.endswith(_UNFINISHED) else tail
        return None

    def _begins_a_text(self, token_id: int) -> bool:
        """Return whether a token is ASCII letters or digits, which decode alike after all texts."""
        known = self._is_clean.get(token_id)
        if known is None:
            piece = self._rust.id_to_token(token_id)
            known = (
                piece is not None
                and token_id not in self._added
                and _BYTE_TOKEN.fullmatch(piece) is None
                and (text := self._rust.decode([token_id]).strip()).isalnum()
                and text.isascii()
            )
            self._is_clean[token_id] = known
        return known

    def _decodes_the_same(self) -> bool:
        """Compare streams after random prompts with those after their tails."""
        from tokenizers.decoders import DecodeStream

        chance = random.Random(0)
        vocab_size = self._rust.get_vocab_size()
        letters = self._rust.encode("a b c word 12 def", add_special_tokens=False).ids
        for number in range(NUM_TRIALS):
            prompt = [
                chance.randrange(vocab_size) if chance.random() < 0.5 else chance.choice(letters)
                for _ in range(chance.randrange(MIN_TAIL_TOKENS, 80))
            ]
            tail = self.tail_of(prompt, skip_special_tokens=number % 2 == 0)
            if tail is None:
                continue
            reply = [chance.randrange(vocab_size) for _ in range(12)]
            texts = []
            for ids in (prompt, tail):
                stream = DecodeStream(ids=ids, skip_special_tokens=number % 2 == 0)
                texts.append([_step(stream, self._rust, token_id) for token_id in reply])
            if texts[0] != texts[1]:
                return False
        return True


def _step(stream: Any, rust: Any, token_id: int) -> str | None:
    """Return the stream's next text, or the beginning of its complaint."""
    try:
        text: str | None = stream.step(rust, token_id)
    except Exception as error:  # the library raises bare ones, which vLLM tells by their beginning
        return f"{type(error).__name__}: {str(error)[:20]}"
    return text


def _is_local(decoder: Any) -> bool:
    """Return whether each token's text depends on its neighbours only, by the decoder's words."""
    try:
        described = json.loads(decoder.__getstate__())
    except (TypeError, ValueError, AttributeError):  # no decoder, or one of another library
        return False
    kind = described["type"]
    steps = {step["type"] for step in described.get("decoders", ())}
    return kind in _DECODERS or (kind == "Sequence" and steps <= _SENTENCEPIECE | _DECODERS)
