"""How long something idle is worth holding."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.ttl import SHARES, best_hold_s


def step(duration_s: float) -> object:
    """The distribution of something that takes exactly so long."""
    return lambda seconds: 1.0 if seconds < duration_s else 0.0


def test_what_surely_comes_back_soon_is_held() -> None:
    """A return after a tenth of the price is waited for."""
    assert best_hold_s(step(0.1), 1.0) >= 0.1  # type: ignore[arg-type]


def test_what_surely_takes_longer_than_its_price_is_let_go_at_once() -> None:
    """Holding for something that costs less to make anew is a loss from the first second."""
    assert best_hold_s(step(50.0), 1.0) == 0.0  # type: ignore[arg-type]


def test_a_memoryless_wait_is_held_for_long_or_not_at_all() -> None:
    """With a constant chance of return, what is worth a second is worth the next one too."""
    assert best_hold_s(lambda t: math.exp(-t / 0.5), 1.0) == SHARES[-1]
    assert best_hold_s(lambda t: math.exp(-t / 4.0), 1.0) == 0.0


def test_a_long_tail_is_held_through_its_body_only() -> None:
    """Mostly short, sometimes endless: hold while the short ones come back, then let go."""
    hold_s = best_hold_s(lambda t: 0.2 + 0.8 * math.exp(-t / 0.1), 4.0)
    assert 0.1 < hold_s < 4.0


@given(
    price_s=st.floats(0.001, 1000.0),
    rate=st.floats(0.001, 1000.0),
    tail=st.floats(0.0, 1.0),
)
def test_the_hold_time_is_no_dearer_than_letting_go(
    price_s: float, rate: float, tail: float
) -> None:
    """Whatever the distribution, the expected cost is at most the price."""

    def p_over(seconds: float) -> float:
        return tail + (1.0 - tail) * math.exp(-rate * seconds)

    hold_s = best_hold_s(p_over, price_s)
    held_s = tail * hold_s + (1.0 - tail) * (1.0 - math.exp(-rate * hold_s)) / rate
    # the trapezium over-estimates a convex curve, so that the true cost is below the one weighed
    assert held_s + p_over(hold_s) * price_s <= price_s * (1.0 + 1e-9)
    assert hold_s == pytest.approx(0.0) or hold_s <= SHARES[-1] * price_s
