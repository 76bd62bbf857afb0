"""How often new jobs are passed over before the first of them is due."""

from __future__ import annotations

import pytest

from agentkv.integrations.vllm.jobs import Job, Turn
from agentkv.integrations.vllm.newcomers import Newcomers

MOST = 3


def turn_of(number: int) -> Turn:
    return Turn(f"request-{number}", Job(f"job-{number}", number, 0.0), number, 0.0, 100)


@pytest.fixture
def turns() -> list[Turn]:
    return [turn_of(number) for number in range(3)]


@pytest.fixture
def newcomers(turns: list[Turn]) -> Newcomers:
    found = Newcomers()
    for turn in turns:
        found.begin(turn)
    return found


def passes(newcomers: Newcomers, num: int) -> list[Turn | None]:
    return [newcomers.passed(MOST) for _ in range(num)]


def test_the_first_in_line_is_due_after_so_many_passes(
    newcomers: Newcomers, turns: list[Turn]
) -> None:
    """And is named again only after as many more, should it still be there."""
    assert passes(newcomers, 8) == [None, None, None, turns[0], None, None, None, turns[0]]


def test_the_count_begins_anew_with_each_job_that_is_let_in(
    newcomers: Newcomers, turns: list[Turn]
) -> None:
    """Whichever it is."""
    passes(newcomers, MOST)
    newcomers.let_in(turns[1])
    assert passes(newcomers, 4) == [None, None, None, turns[0]]


def test_one_that_is_gone_is_not_due_and_hastens_nobody(
    newcomers: Newcomers, turns: list[Turn]
) -> None:
    """The next in line was passed over as often."""
    passes(newcomers, MOST)
    newcomers.left(turns[0])
    assert passes(newcomers, 1) == [turns[1]]


def test_nobody_in_line_is_not_passed_over() -> None:
    """What went before the first came does not count for it."""
    newcomers, turn = Newcomers(), turn_of(0)
    assert passes(newcomers, 9) == [None] * 9
    newcomers.begin(turn)
    assert passes(newcomers, 4) == [None, None, None, turn]
    newcomers.left(turn)
    assert passes(newcomers, 9) == [None] * 9
