"""A reply after the end of its prompt has the text that it has after the whole prompt."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from agentkv.integrations.vllm.front_end.boundaries import find_boundaries
from agentkv.integrations.vllm.front_end.detokenizer import PromptTails
from tests.integrations.vllm.front_end.edits import Editor, texts_after
from tests.integrations.vllm.front_end.tokenizers_of_all_kinds import KINDS

LOCAL = ("byte_level_bpe", "sentencepiece_bpe", "unigram", "awkward_added_tokens", "demo")


def tokenizer_of(name: str, demo_model_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(demo_model_dir) if name == "demo" else KINDS[name]()


@pytest.mark.parametrize("name", LOCAL)
def test_replies_have_the_same_text(name: str, demo_model_dir: Path) -> None:
    """Byte for byte, for prompts and replies of any tokens, with and without special ones."""
    tokenizer = tokenizer_of(name, demo_model_dir)
    tails = PromptTails(tokenizer)
    assert tails.is_on
    boundaries = find_boundaries(tokenizer)
    editor = Editor(tokenizer, boundaries, seed=2)
    num_tokens = len(tokenizer)
    num_tails = 0
    for number in range(400):
        chance = editor.chance
        prompt = tokenizer(editor.edited(), add_special_tokens=False)["input_ids"]
        prompt = prompt[: chance.randrange(1, len(prompt))]
        if number % 3 == 0:
            prompt += [chance.randrange(num_tokens) for _ in range(chance.randrange(1, 40))]
        reply = [chance.randrange(num_tokens) for _ in range(12)]
        skip = number % 2 == 0
        tail = tails.tail_of(prompt, skip_special_tokens=skip)
        if tail is not None:
            num_tails += 1
            assert len(tail) < len(prompt)
            ours, stock = (texts_after(tokenizer, ids, reply, skip) for ids in (tail, prompt))
            assert ours == stock
    assert num_tails > 100


def test_a_decoder_that_is_not_local_is_left_alone() -> None:
    """WordPiece joins words in ways that hang on more than a token's neighbours."""
    assert not PromptTails(KINDS["word_piece"]()).is_on


def test_a_prompt_that_ends_within_a_character_is_taken_whole(demo_model_dir: Path) -> None:
    """Stock's text for such a prompt is an accident of all of it, and stays what it is."""
    tokenizer = tokenizer_of("demo", demo_model_dir)
    tails = PromptTails(tokenizer)
    prompt = tokenizer("hello " * 50 + "\U0001f469")["input_ids"][:-1]
    assert tails.tail_of(prompt, skip_special_tokens=True) is None
    assert tails.tail_of(prompt[:-5], skip_special_tokens=True) is not None
    assert tails.tail_of([], skip_special_tokens=True) is None
