"""Facts about the arithmetic on the pin experiment's rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentkv.evals.pin_rows import Usage

from .recorded_runs import CONTINUUM


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "touched", "full"),
    [(66, 7, 5, 4), (279, 12, 19, 18), (397, 8, 26, 25), (60, 4, 4, 3), (61, 4, 5, 4)],
)
def test_blocks_expected(prompt_tokens: int, output_tokens: int, touched: int, full: int) -> None:
    """Touched blocks are rounded up; full ones are rounded down, without the last token sampled."""
    usage = Usage(prompt_tokens, output_tokens, 0)
    assert (usage.blocks_touched(16), usage.blocks_full(16)) == (touched, full)


def test_recorded_pins_are_exactly_the_full_blocks() -> None:
    """On a real server what stays after a turn is what the arithmetic says."""
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
    assert document["turns"][2]["blocks_touched"] == 19
    assert document["turns"][2]["blocks_full"] == 18
    assert document["turns"][2]["usage"] == {
        "prompt_tokens": 550,
        "output_tokens": 32,
        "cached_tokens": 320,
    }
    assert document["ttl_trial"]["held_s"] == 2.09
