"""Whether ids and text are the tokenizer's own, over edits, boundaries and replies of any kind."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentkv.integrations.vllm.front_end import encoder as front_end
from agentkv.integrations.vllm.front_end.boundaries import ADVERSARIAL, adversarial_texts
from agentkv.integrations.vllm.front_end.detokenizer import PromptTails
from agentkv.integrations.vllm.front_end.encoder import MismatchError, PromptEncoder

PARTS_AT_ONCE = 1000


class Editor:
    """Edits a text as agents, templates and ill-meaning users do: mostly at its end."""

    def __init__(self, tokenizer: Any, boundaries: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        added = [token.content for token in tokenizer.added_tokens_decoder.values()]
        self._special = [*list(boundaries.ids)[:6], *added[-8:]]
        self._pieces = [self._piece() for _ in range(60)]

    def edited(self) -> str:
        """The text after one to three more edits."""
        chance, pieces = self.chance, self._pieces
        for _ in range(chance.randrange(1, 4)):
            place, kind = chance.randrange(len(pieces)), chance.random()
            if kind < 0.5:
                pieces.extend(self._piece() for _ in range(3))
            elif kind < 0.7:
                pieces[place] = self._piece()
            elif kind < 0.85:
                pieces.insert(place, self._piece())
            else:
                del pieces[place]
        if len(pieces) > 120:  # a compaction, or the same conversation taken up further back
            self._pieces = pieces[-60:] if chance.random() < 0.5 else pieces[:60]
        return "".join(self._pieces)

    def _piece(self) -> str:
        chance = self.chance
        kind = chance.random()
        special: str = chance.choice(self._special)
        if kind < 0.25:
            return special
        if kind < 0.32:
            half = special[: len(special) // 2]
            return chance.choice([special[:-1], special[1:], half, special + special[1:]])
        if kind < 0.7:
            return chance.choice(ADVERSARIAL)
        planes = ((32, 127), (0x20, 0x3000), (0x590, 0x700), (0x1F300, 0x1FA00))
        return "".join(
            chr(chance.randrange(*chance.choice(planes))) for _ in range(chance.randrange(1, 12))
        )


def texts_after(tokenizer: Any, prompt: list[int], reply: list[int], skip: bool) -> list[str]:
    """What each token of a reply adds after a prompt, or how the library complains of it."""
    stream = DecodeStream(ids=prompt, skip_special_tokens=skip)
    texts = []
    for token_id in reply:
        try:
            texts.append(str(stream.step(tokenizer.backend_tokenizer, token_id)))
        except Exception as error:  # the library raises bare ones; vLLM begins a new stream then
            texts.append(str(error)[:20])
            stream = DecodeStream(skip_special_tokens=skip)
    return texts


def measure(folders: Sequence[Path], edits: int, strings: int, seed: int) -> Iterator[Any]:
    """One row for each tokenizer of a folder: how much was compared, and how much differed."""
    front_end.MIN_TEXT_CHARS, front_end.MIN_PART_CHARS = 0, 16
    for folder in folders:
        began_s = time.monotonic()
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (ValueError, OSError):
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
        tokenizer.model_max_length = 10**9
        row: dict[str, Any] = {"tokenizer": str(folder), "kind": type(tokenizer).__name__}
        try:
            row |= _compare(tokenizer, edits, strings, seed)
        except MismatchError as error:
            row["not used"] = str(error)
        yield {**row, "seconds": round(time.monotonic() - began_s)}


def _compare(tokenizer: Any, edits: int, strings: int, seed: int) -> dict[str, Any]:
    told: Counter[str] = Counter()

    def count(what: str, number: int) -> None:
        told[what] += number

    encoder = PromptEncoder(tokenizer, 2**22, count=count, chance=lambda: 1.0)
    tails = PromptTails(tokenizer)
    editor = Editor(tokenizer, encoder.boundaries, seed)
    differ: Counter[str] = Counter()
    num_tails = 0
    for number in range(edits):
        text = editor.edited()
        options = {"truncation": True, "max_length": 10**6, "add_special_tokens": number % 2 == 0}
        encoded, whole = encoder.encode(text, "one", **options), tokenizer(text, **options)
        if encoded.later is not None:
            encoded.later()
        ids = whole["input_ids"]
        differ["edits"] += encoded.ids != ids
        if tails.is_on and number % 5 == 0:
            skip, chance = number % 10 == 0, editor.chance
            prompt = ids[: chance.randrange(1, len(ids))]
            reply = [chance.randrange(len(tokenizer)) for _ in range(12)]
            tail = tails.tail_of(prompt, skip_special_tokens=skip)
            num_tails += tail is not None
            differ["replies"] += tail is not None and (
                texts_after(tokenizer, tail, reply, skip)
                != texts_after(tokenizer, prompt, reply, skip)
            )
    for number in range(max(1, strings // PARTS_AT_ONCE)):
        parts = adversarial_texts(encoder.boundaries, seed + number)[:PARTS_AT_ONCE]
        apart = [
            each
            for part in parts
            for each in tokenizer(part, add_special_tokens=False)["input_ids"]
        ]
        differ["strings"] += (
            tokenizer("".join(parts), add_special_tokens=False)["input_ids"] != apart
        )
    return {
        "boundaries": len(encoder.boundaries.ids),
        **{"edits": edits, "strings": strings, "replies": num_tails},
        "differ": {name: differ[name] for name in ("edits", "strings", "replies")},
        "reused": round(told["reused"] / max(1, told["reused"] + told["encoded"]), 3),
    }


def describe(row: dict[str, Any]) -> str:
    """One line."""
    return ", ".join(f"{name}: {value}" for name, value in row.items())
