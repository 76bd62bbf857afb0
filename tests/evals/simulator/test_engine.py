"""How far a jump goes."""

from __future__ import annotations

import math
from dataclasses import replace

from agentkv.evals.simulator.cost import FittedLine
from agentkv.evals.simulator.engine import ContextHashes, LiveTurn, plan_jump

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


def plan(*turns: LiveTurn, num_free_blocks: int = 100, left_s: float = math.inf) -> list[float]:
    return plan_jump(turns, MACHINE, num_free_blocks=num_free_blocks, left_s=left_s)


def test_a_jump_ends_with_the_first_turn_that_ends() -> None:
    """A jump ends with the first turn that ends."""
    assert plan(decoding(3), decoding(7)) == [1.0, 2.0, 3.0]


def test_a_jump_ends_with_the_step_in_which_an_event_falls() -> None:
    """A jump ends with the step in which an event falls: one at 2.5 s is handled at 3 s."""
    assert plan(decoding(30), left_s=2.5) == [1.0, 2.0, 3.0]
    assert plan(decoding(30), left_s=2.0) == [1.0, 2.0]


def test_a_jump_keeps_within_the_batch() -> None:
    """The turns of a jump share the tokens of one batch."""
    assert len(plan(*[decoding(30)] * 16)) == 4


def test_a_jump_takes_no_more_blocks_than_are_free() -> None:
    """A jump stops before it needs more blocks than are free."""
    assert len(plan(decoding(30), num_free_blocks=0)) < 12
    assert len(plan(decoding(30), num_free_blocks=2)) == 30


def test_no_jump_while_a_prompt_is_computed() -> None:
    """There is no jump while a prompt is computed, without turns, or of a single step."""
    prefilling = decoding(5)
    prefilling.num_generated = 2
    assert plan(decoding(5), prefilling) == plan() == plan(decoding(1)) == []
