"""Texts as agents and ill-meaning users edit them, and what the library says of a reply."""

import random
from typing import Any

from tokenizers.decoders import DecodeStream

from agentkv.integrations.vllm.front_end.boundaries import ADVERSARIAL


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
