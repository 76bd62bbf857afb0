"""Durations as coreutils read them, with arithmetic and defaults of variables evaluated."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.commands.quantities import duration_s

SECONDS = {
    **{"60": 60.0, "1.5m": 90.0, ".5": 0.5, "2.h": 7200.0, "1d": 86_400.0, "0": 0.0, "1e9": 1e9},
    **{"1E-1": 0.1, "inf": math.inf, "infinity": math.inf, "INFINITY": math.inf, "0x10": 16.0},
    **{"$((60*10))": 600.0, "$(( (5 + 3) * 60 / 7 % 50 ))m": 1080.0, "${N:-30}": 30.0},
    **{"${N-2m}": 120.0, "${DELAY_S:-5}m": 300.0},
}
NO_SECONDS = (
    *("", "abc", "-1", "1x", "1_000", "nan", "٣", "5 ", "$N", "${N}", "${N}s", "$(cat f)"),
    *("$((N*2))", "$((2**99999))", "$((1/0))", "$((1-2))", "$((010))", "$(( ))", "$((1+"),
    "$((" + "(" * 30 + "))",
)


@pytest.mark.parametrize(
    ("word", "seconds"), [*SECONDS.items(), *((word, None) for word in NO_SECONDS)]
)
def test_word_gives_seconds(word: str, seconds: float | None) -> None:
    """Units, exponents, arithmetic and defaults give seconds, what bash would refuse gives None."""
    assert duration_s(word) == seconds


@given(st.text(alphabet=st.sampled_from("0123456789.eE+-*/%() $(){}:inf_xsmhd"), max_size=60))
def test_any_word_is_read(word: str) -> None:
    """No word makes the reader raise or return a negative duration."""
    seconds = duration_s(word)
    assert seconds is None or seconds >= 0
