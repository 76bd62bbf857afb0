"""How often newcomers are passed over before the first of them is due."""

from __future__ import annotations

import pytest

from agentkv.integrations.vllm.retention.admission import StarvationGuard

MOST = 3
LATER = 100


@pytest.fixture
def newcomers() -> StarvationGuard:
    found = StarvationGuard()
    for order, name in enumerate("abc"):
        found.add(name, order)
    return found


def passes(newcomers: StarvationGuard, num: int) -> list[str | None]:
    return [newcomers.overtaken_by(LATER, MOST) for _ in range(num)]


def test_the_first_in_line_is_due_after_so_many_passes(newcomers: StarvationGuard) -> None:
    """It is told once, and stays due until it ends."""
    assert passes(newcomers, 8) == [None, None, None, "a", None, None, None, None]
    newcomers.admitted("a")
    assert newcomers.is_starved("a")
    newcomers.ended("a")
    assert not newcomers.is_starved("a")


def test_who_is_first_does_not_pass_itself(newcomers: StarvationGuard) -> None:
    """Nor does who came before it; who came later does, in line or not."""
    orders = [newcomers.arrival_of("a"), newcomers.arrival_of("a"), -1]
    assert orders[0] == 0
    for order in orders:
        assert newcomers.overtaken_by(order, 0) is None
    assert newcomers.overtaken_by(newcomers.arrival_of("b"), 0) == "a"


def test_the_count_begins_anew_when_the_first_is_let_in(newcomers: StarvationGuard) -> None:
    """With the next in line."""
    passes(newcomers, MOST)
    newcomers.admitted("a")
    assert passes(newcomers, 4) == [None, None, None, "b"]


def test_another_that_is_let_in_does_not_put_the_first_off(newcomers: StarvationGuard) -> None:
    """However many go before it."""
    passes(newcomers, MOST)
    newcomers.admitted("b")
    assert passes(newcomers, 1) == ["a"]


def test_one_that_is_gone_is_not_due(newcomers: StarvationGuard) -> None:
    """The next in line was passed over as often."""
    passes(newcomers, MOST)
    newcomers.ended("a")
    assert passes(newcomers, 1) == ["b"]


def test_turns_that_came_before_do_not_count(newcomers: StarvationGuard) -> None:
    """They were first in line themselves."""
    newcomers.admitted("a")
    assert [newcomers.overtaken_by(0, MOST) for _ in range(9)] == [None] * 9


def test_nobody_in_line_is_not_passed_over() -> None:
    """What went before the first came does not count for it."""
    newcomers = StarvationGuard()
    assert passes(newcomers, 9) == [None] * 9
    newcomers.add("a", 0)
    assert passes(newcomers, 4) == [None, None, None, "a"]
    newcomers.ended("a")
    assert passes(newcomers, 9) == [None] * 9
    assert len(newcomers) == 0
