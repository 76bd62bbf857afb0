"""The loads of a study, as they are written."""

from __future__ import annotations

import pytest

from agentkv.errors import InputError
from studies.policy_grid.grid import DEFAULT_LOADS, Load, parse_load


def test_a_known_name_stands_for_its_multiple() -> None:
    """Such as overload."""
    assert parse_load("overload") == Load("overload", 4.0)


def test_a_multiple_may_be_given() -> None:
    """Under a name of one's own, or another one than usual."""
    assert parse_load("3x=3") == Load("3x", 3.0)
    assert parse_load("light=0.05") == Load("light", 0.05)


def test_closed_loops_tell_their_size() -> None:
    """They have no rate."""
    assert parse_load("closed-32") == Load("closed-32", concurrency=32)


def test_bursts_are_known_by_their_name() -> None:
    """Whatever follows it."""
    assert [parse_load(name).arrivals for name in ("burst", "burst-2x=2", "1x")] == [
        "burst",
        "burst",
        "poisson",
    ]


def test_the_defaults_can_be_read() -> None:
    """All seven, each another load."""
    assert len({parse_load(name) for name in DEFAULT_LOADS}) == 7


@pytest.mark.parametrize(
    "text", ["", "heavy", "x=", "x=0", "x=-1", "x=nan", "x=inf", "closed-0", "closed=2", "=2"]
)
def test_other_loads_are_refused(text: str) -> None:
    """With what is allowed."""
    with pytest.raises(InputError, match=r"--loads: got .*allowed are light"):
        parse_load(text)
