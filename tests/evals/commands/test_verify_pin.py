"""`agentkv verify-pin`: the arithmetic on its rows, its verdict on recorded runs, and its text."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from agentkv.evals.commands.verify_pin import (
    NO_POLICY_HINT,
    PinRun,
    TTLTrial,
    TurnRow,
    job_of,
    judge,
    verdict_lines,
)

TOKENS = ((136, 0), (308, 160), (550, 320), (791, 576), (958, 800))
"""Tokens of each turn's prompt, and those found in the cache; every output has 32."""


def recorded_run(policy: str | None, blocks_after: tuple[int, ...], trial: TTLTrial) -> PinRun:
    """A run with these numbers of blocks in use after its turns and all through its gaps."""
    rows = tuple(
        TurnRow(
            turn=turn + 1,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            blocks_full=(prompt_tokens + 31) // 32,
            blocks_before=blocks_after[turn - 1] if turn else 0,
            blocks_after=blocks_after[turn],
            gap_blocks=() if turn == 4 else (blocks_after[turn],) * 4,
            happened="",
        )
        for turn, (prompt_tokens, cached_tokens) in enumerate(TOKENS)
    )
    return PinRun(policy, 0, rows, trial, num_foreign_requests=0)


CONTINUUM = recorded_run("continuum", (5, 10, 18, 25, 0), TTLTrial(0, 5, 0, 2.0, 2.09, 2.09))
FCFS = recorded_run(None, (0, 0, 0, 0, 0), TTLTrial(0, 0, 0, None, None, 0.06))


GAPS, GROWTH = "usage constant in every gap", "usage grows turn by turn"
LAST_STEP, TTL = "usage zero after the last step", "usage zero after a TTL runs out"
HITS, TRAFFIC = "cached tokens on the next turn", "no other traffic during the run"


def failures(run: PinRun) -> dict[str, list[str]]:
    """The problems of each check that failed."""
    return {name: problems for name, problems in judge(run).items() if problems}


def with_row(turn: int, **changes: Any) -> PinRun:
    """The run under continuum with one row changed."""
    rows = list(CONTINUUM.turns)
    rows[turn - 1] = replace(rows[turn - 1], **changes)
    return replace(CONTINUUM, turns=tuple(rows))


def test_a_run_passes_if_it_held_something() -> None:
    """A run under continuum passes six checks; usage constant at zero does not count as held."""
    assert list(judge(CONTINUUM).values()) == [[]] * 6
    held = "no block was pinned when the turn had ended"
    assert failures(FCFS) == {
        GAPS: [f"turn {turn}: {held}" for turn in (1, 2, 3, 4)],
        GROWTH: [f"turn {turn}: 0 blocks, 0 before it" for turn in (1, 2, 3, 4)],
        TTL: ["no block was pinned after the second job's turn, so no TTL could run out"],
    }


@pytest.mark.parametrize(
    ("run", "check", "problem"),
    [
        (with_row(2, gap_blocks=(10, 0)), GAPS, "turn 2: 10 blocks after it, then 10, 0"),
        (with_row(3, blocks_after=10, gap_blocks=()), GROWTH, "turn 3: 10 blocks, 10 before it"),
        (with_row(5, blocks_after=30), LAST_STEP, "turn 5: 30 blocks are still in use"),
        (
            replace(CONTINUUM, ttl_trial=TTLTrial(0, 5, 5, 2.0, None, 4.02)),
            TTL,
            "5 blocks are still pinned 4.0 s after the turn",
        ),
        (
            with_row(2, prompt_tokens=79, cached_tokens=0),
            HITS,
            "turn 2: none of 79 prompt tokens were cached",
        ),
        (
            replace(CONTINUUM, num_foreign_requests=3),
            TRAFFIC,
            "3 other requests ran, so usage is not this job's alone",
        ),
        (
            replace(CONTINUUM, blocks_at_start=2, ttl_trial=TTLTrial(2, 7, 2, 2.0, 2.1, 2.1)),
            TRAFFIC,
            "2 blocks were in use before the run began",
        ),
    ],
)
def test_each_fault_fails_its_check_and_is_named(run: PinRun, check: str, problem: str) -> None:
    """A run with one thing wrong fails the check for it, with the turn and what was seen."""
    assert failures(run)[check] == [problem]


def test_only_a_failed_stock_server_gets_advice() -> None:
    """A passed run has one line a check; one without the routes names what to start."""
    lines = verdict_lines(CONTINUUM, judge(CONTINUUM))
    assert [line[:4] for line in lines] == ["ok  "] * 6
    lines = verdict_lines(FCFS, judge(FCFS))
    assert lines[-1] == NO_POLICY_HINT
    assert f"FAIL  {GAPS}" in lines


@pytest.mark.parametrize("block_size", [16, 32, 128, 256])
def test_every_turn_fills_a_block(block_size: int) -> None:
    """Each turn's context, but for its last token, has a whole block more than the one before."""
    job = job_of(block_size)
    filled = [
        (job.prompt_tokens(number) + turn.output_tokens - 1) // block_size
        for number, turn in enumerate(job.turns)
    ]
    assert filled[0] > 0
    assert all(later > earlier for earlier, later in pairwise(filled))
