"""The pin experiment's texts, the arithmetic on its rows, and what it says of a turn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentkv.evals.pin_experiment import TURNS, TurnTokens, system_prompt, what_happened
from agentkv.evals.server import BlockPool, Snapshot

from .recorded_runs import CONTINUUM

POOL = BlockPool(block_size=32, num_blocks=100)
IDLE = Snapshot({"0": 0.0}, 0, 0, 0, pinned_blocks=0, num_pins=0, pin_ends={"returned": 0})
PINNED = replace(IDLE, usage_by_engine={"0": 0.05}, pinned_blocks=5, num_pins=1)
GROWN = replace(PINNED, pinned_blocks=9, num_pins=2, pin_ends={"returned": 1})
EXPIRED = replace(GROWN, pinned_blocks=0, pin_ends={"returned": 1, "expired": 1})
OVER = replace(PINNED, pinned_blocks=0, pin_ends={"returned": 1})
STOCK = replace(IDLE, pinned_blocks=None, pin_ends={})
STOCK_HOLDING = replace(STOCK, usage_by_engine={"0": 0.05})


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "touched", "full"),
    [(66, 7, 5, 4), (279, 12, 19, 18), (397, 8, 26, 25), (60, 4, 4, 3), (61, 4, 5, 4)],
)
def test_blocks_expected(prompt_tokens: int, output_tokens: int, touched: int, full: int) -> None:
    """Touched blocks are rounded up; full ones are rounded down, without the last token sampled."""
    usage = TurnTokens(prompt_tokens, output_tokens, 0)
    assert (usage.blocks_touched(16), usage.blocks_full(16)) == (touched, full)


def test_recorded_pins_are_exactly_the_full_blocks() -> None:
    """On a real server the blocks that stay after a turn are those the arithmetic gives."""
    for row in CONTINUUM.turns[:-1]:
        assert row.blocks_after == row.usage.blocks_full(CONTINUUM.block_size)


@pytest.mark.parametrize(
    ("gap_blocks", "change"), [((), 0), ((5, 5), 0), ((5, 0), -5), ((6, 1, 9), -4), ((5, 9), 4)]
)
def test_the_change_in_a_gap_is_the_largest_one(gap_blocks: tuple[int, ...], change: int) -> None:
    """Of all readings the one farthest from the first counts, with its sign."""
    row = replace(CONTINUUM.turns[0], gap_blocks=gap_blocks)
    assert row.change_in_gap_blocks == change


def test_a_run_becomes_json_with_what_was_expected() -> None:
    """The document holds rows, trial and the numbers derived from them."""
    document = json.loads(json.dumps(CONTINUUM.as_dict()))
    usage = {"prompt_tokens": 550, "output_tokens": 32, "cached_tokens": 320}
    turn = document["turns"][2]
    assert (turn["blocks_touched"], turn["blocks_full"], turn["usage"]) == (19, 18, usage)
    assert document["ttl_trial"]["held_s"] == 2.09


@pytest.mark.parametrize("block_size", [16, 32, 128, 256])
def test_every_text_fills_a_block(block_size: int) -> None:
    """Even at 4.5 characters a token, system prompt and outputs are longer than one block."""
    texts = [system_prompt(block_size), *(turn.simulated_output(block_size) for turn in TURNS)]
    assert all(len(text) / 4.5 > block_size for text in texts)


def test_the_whole_conversation_fits_the_demo_server() -> None:
    """At 2.5 characters a token and blocks of 128 it stays below 4,096 tokens."""
    texts = [system_prompt(128), *(turn.simulated_output(128) for turn in TURNS[:-1])]
    assert sum(map(len, texts)) / 2.5 + len(TURNS) * 60 < 4096
    assert TURNS[1].simulated_output(32).startswith("def step_0(value): return value + 0\ndef")


@pytest.mark.parametrize(
    ("before", "after", "gap_end", "is_last_step", "words"),
    [
        (IDLE, PINNED, PINNED, False, "pinned 5 blocks"),
        (PINNED, GROWN, GROWN, False, "the job's next turn has its blocks; pinned 9 blocks"),
        (
            PINNED,
            GROWN,
            EXPIRED,
            False,
            "the job's next turn has its blocks; pinned 9 blocks; the TTL is over",
        ),
        (PINNED, OVER, OVER, True, "the job's next turn has its blocks; freed: last step"),
        (IDLE, IDLE, IDLE, False, "not pinned"),
        (STOCK, STOCK, STOCK, False, "freed at once"),
        (STOCK, STOCK, STOCK, True, "freed: last step"),
        (STOCK, STOCK_HOLDING, STOCK, False, "5 blocks held"),
    ],
)
def test_a_turns_fate_is_put_in_words(
    before: Snapshot, after: Snapshot, gap_end: Snapshot, is_last_step: bool, words: str
) -> None:
    """The server's counters tell what happened to a turn's blocks, or the usage without them."""
    assert what_happened(before, after, gap_end, POOL, is_last_step=is_last_step) == words
