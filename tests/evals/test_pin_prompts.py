"""Facts about the simulated conversation of the pin experiment."""

from __future__ import annotations

import pytest

from agentkv.evals.pin_prompts import TURNS, simulated_output, system_prompt


@pytest.mark.parametrize("block_size", [16, 32, 128, 256])
def test_every_text_fills_a_block(block_size: int) -> None:
    """Even at 4.5 characters a token, system prompt and outputs are longer than one block."""
    texts = [system_prompt(block_size), *(simulated_output(turn, block_size) for turn in TURNS)]
    assert all(len(text) / 4.5 > block_size for text in texts)


def test_the_whole_conversation_fits_the_demo_server() -> None:
    """At 2.5 characters a token and blocks of 128 it stays below 4,096 tokens."""
    texts = [system_prompt(128), *(simulated_output(turn, 128) for turn in TURNS[:-1])]
    assert sum(map(len, texts)) / 2.5 + len(TURNS) * 60 < 4096


def test_the_texts_are_the_same_each_time() -> None:
    """Nothing in the conversation depends on chance or time."""
    assert simulated_output(TURNS[1], 32) == simulated_output(TURNS[1], 32)
    assert simulated_output(TURNS[1], 32).startswith("def step_0(value): return value + 0\ndef")
