"""How far a jump goes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.engine import plan_jump
from agentkv.evals.simulator.turns import ContextHashes, LiveTurn

from .simulated import machine

ONE_SECOND_A_STEP = FittedLine(1.0, 0.0, 0.0, 0.0, 0.0)
MACHINE = replace(machine(), cost=ONE_SECOND_A_STEP, max_num_batched_tokens=64)


def decoding(num_left: int, computed_tokens: int = 100) -> LiveTurn:
    """A turn with its prompt computed and its first token sampled."""
    return LiveTurn(
        "turn",
        prompt_tokens=computed_tokens,
        output_tokens=num_left + 1,
        reply_token=0,
        hashes=ContextHashes(0, 16),
        known_tokens=0,
        num_generated=1,
        computed_tokens=computed_tokens,
    )


@pytest.mark.parametrize(
    ("turns", "num_free_blocks", "left_s", "num_steps"),
    [
        ([decoding(3), decoding(7)], 100, math.inf, 3),
        ([decoding(30)], 100, 2.5, 3),
        ([decoding(30)], 100, 2.0, 2),
        ([decoding(30)] * 16, 100, math.inf, 4),
        ([decoding(30)], 0, math.inf, 7),
        ([decoding(30)], 2, math.inf, 30),
        ([decoding(5), replace(decoding(5), num_generated=2)], 100, math.inf, 0),
        ([], 100, math.inf, 0),
        ([decoding(1)], 100, math.inf, 0),
    ],
    ids=(
        *("the first turn ends", "an event falls into a step", "an event falls between two steps"),
        *("the batch is full", "no block is free", "two blocks are free"),
        *("a prompt is computed", "nothing runs", "a single step"),
    ),
)
def test_a_jump_ends_before_anything_happens(
    turns: list[LiveTurn], num_free_blocks: int, left_s: float, num_steps: int
) -> None:
    """A jump ends with the first end of a turn or step in which an event falls, and keeps within
    the batch and the free blocks; no jump of one step, or while a prompt is computed."""
    ends_s = plan_jump(turns, MACHINE, num_free_blocks=num_free_blocks, left_s=left_s)
    assert ends_s == [1.0 + step for step in range(num_steps)]
