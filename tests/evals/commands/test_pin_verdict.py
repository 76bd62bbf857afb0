"""Facts about the verdict on recorded runs, and on runs with one thing wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agentkv.evals.commands.verify_pin import judge
from agentkv.evals.pin_experiment import PinRun, TTLTrial, Usage

from ..recorded_runs import CONTINUUM, FCFS, recorded_run


def failures(run: PinRun) -> dict[str, tuple[str, ...]]:
    """The problems of each check that failed."""
    return {check.name: check.problems for check in judge(run) if not check.has_passed}


def with_row(turn: int, **changes: object) -> PinRun:
    """The run under continuum with one row changed."""
    rows = list(CONTINUUM.turns)
    rows[turn - 1] = replace(rows[turn - 1], **changes)  # type: ignore[arg-type]
    return replace(CONTINUUM, turns=tuple(rows))


def test_the_run_under_continuum_passes_every_check() -> None:
    """Held in the gaps, growing, freed at the end and by the TTL, hit by the next turn."""
    assert failures(CONTINUUM) == {}
    assert len(judge(CONTINUUM)) == 6


def test_the_run_under_fcfs_fails_for_holding_nothing() -> None:
    """Stock frees at once: its usage is constant, at zero, and that does not count as held."""
    assert failures(FCFS) == {
        "usage constant in every gap": tuple(
            f"turn {turn}: no block was held when the turn had ended" for turn in (1, 2, 3, 4)
        ),
        "usage grows turn by turn": tuple(
            f"turn {turn}: 0 blocks, 0 before it" for turn in (1, 2, 3, 4)
        ),
        "usage zero after a TTL runs out": (
            "no block was held after the second job's turn, so no TTL could run out",
        ),
    }


def test_a_pin_that_ends_in_a_gap_fails_with_its_readings() -> None:
    """The turn and what was read in its gap are named."""
    assert failures(with_row(2, gap_blocks=(10, 10, 0, 0))) == {
        "usage constant in every gap": ("turn 2: 10 blocks after it, then 10, 10, 0, 0",)
    }


def test_blocks_that_come_in_a_gap_fail_too() -> None:
    """Usage must not rise either while nothing of this job runs."""
    assert list(failures(with_row(3, gap_blocks=(18, 30, 18, 18)))) == [
        "usage constant in every gap"
    ]


def test_a_turn_that_holds_no_more_than_the_one_before_fails() -> None:
    """The same number of blocks after a longer context is not growth."""
    run = recorded_run("continuum", (5, 10, 10, 25, 0), CONTINUUM.ttl_trial)
    assert failures(run) == {"usage grows turn by turn": ("turn 3: 10 blocks, 10 before it",)}


def test_blocks_left_after_the_last_step_fail() -> None:
    """The last step frees at once, not when the TTL is over."""
    assert failures(with_row(5, blocks_after=30)) == {
        "usage zero after the last step": ("turn 5: 30 blocks are still held",)
    }


def test_a_pin_that_outlives_its_ttl_fails() -> None:
    """Blocks still in use when TTL and margin are over are counted."""
    run = replace(CONTINUUM, ttl_trial=TTLTrial(0, 5, 5, 2.0, None, 4.02))
    assert failures(run) == {
        "usage zero after a TTL runs out": ("5 blocks are still held 4.0 s after the turn",)
    }


def test_a_turn_without_cached_tokens_fails_unless_it_is_the_first() -> None:
    """A context that was held but not found again is worth nothing."""
    assert failures(with_row(4, usage=Usage(791, 32, 0))) == {
        "cached tokens on the next turn": ("turn 4: none of 791 prompt tokens were cached",)
    }


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_foreign_requests": 3}, "3 other requests ran"),
        ({"blocks_at_start": 2}, "2 blocks were held before the run began"),
    ],
)
def test_other_traffic_is_named(changes: dict[str, int], problem: str) -> None:
    """A busy server cannot be judged by its usage, and the verdict says why."""
    (reason,) = failures(replace(CONTINUUM, **changes))["no other traffic during the run"]  # type: ignore[arg-type]
    assert problem in reason
