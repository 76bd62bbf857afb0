"""Distributions over the grid: probabilities, quantiles, and what a bound does to them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.grid import (
    HIGHEST_S,
    LOWEST_S,
    NUM_BINS,
    GridDistribution,
    bell,
    bin_of,
    cut_at,
    dense,
    over,
    shifted,
)


def lognormal(median_s: float, deviation: float) -> GridDistribution:
    return GridDistribution(dense(*bell(math.log(median_s), deviation)))


@pytest.mark.parametrize(("median_s", "deviation"), [(0.1, 0.5), (1.0, 1.0), (30.0, 1.3)])
def test_grid_follows_the_lognormal_it_was_made_from(median_s: float, deviation: float) -> None:
    """Probabilities are within 0.01, quantiles within a bin's width of the exact ones."""
    distribution = lognormal(median_s, deviation)
    for seconds in (0.1, 0.5, 2.0, 5.0, 40.0):
        exact = 0.5 * math.erfc(math.log(seconds / median_s) / (deviation * math.sqrt(2)))
        assert distribution.p_over(seconds) == pytest.approx(exact, abs=0.01)
    assert distribution.quantile_s(0.5) == pytest.approx(median_s, rel=0.1)
    assert distribution.quantile_s(0.9) == pytest.approx(
        median_s * math.exp(1.2816 * deviation), rel=0.1
    )


@given(st.floats(0.02, 1000.0), st.floats(0.1, 2.0), st.floats(0.02, 0.98))
def test_quantile_and_probability_are_inverse(
    median_s: float, deviation: float, share: float
) -> None:
    """The probability over a quantile is the rest of its share, within the grid."""
    distribution = lognormal(median_s, deviation)
    seconds = distribution.quantile_s(share)
    if LOWEST_S < seconds < HIGHEST_S:
        assert distribution.p_over(seconds) == pytest.approx(1.0 - share, abs=1e-6)


def test_probability_falls_from_1_to_0() -> None:
    """The probability is 1 at 0 seconds, goes to 0 beyond the grid, and never rises."""
    distribution = lognormal(1.0, 1.0)
    at = [0.0, 1e-6, 0.005, 0.01, 0.1, 1.0, 10.0, 1e3, 1e4, 1e9]
    values = [distribution.p_over(seconds) for seconds in at]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1e-6


@pytest.mark.parametrize("bound_s", [0.001, 0.5, 5.0, 60.0, 1e5])
def test_a_lower_bound_leaves_what_lies_over_it(bound_s: float) -> None:
    """No probability is left under the bound and the rest sums to 1, even if it had none."""
    left = over(dense(*bell(0.0, 0.5)), bound_s)
    assert sum(left) == pytest.approx(1.0)
    assert sum(left[: bin_of(bound_s)]) == 0.0


def test_a_time_out_gathers_what_lies_over_it() -> None:
    """A command cut at 10 s never runs for longer, and the probability below is untouched."""
    whole = lognormal(20.0, 1.0)
    cut = GridDistribution(cut_at(whole.bins, 10.0))
    assert cut.p_over(15.0) == pytest.approx(0.0, abs=1e-9)
    assert cut.p_over(2.0) == pytest.approx(whole.p_over(2.0))


@given(st.floats(-12.0, 14.0), st.floats(0.05, 3.0), st.floats(-20.0, 20.0))
def test_a_bell_and_its_shift_are_distributions(mean: float, deviation: float, by: float) -> None:
    """A bell, and its shift by any distance, has all bins, none negative, of sum 1."""
    whole = dense(*bell(mean, deviation))
    for bins in (whole, shifted(whole, by)):
        assert len(bins) == NUM_BINS
        assert min(bins) >= 0.0
        assert sum(bins) == pytest.approx(1.0)


@pytest.mark.parametrize("times", [0.05, 0.5, 1.0, 2.0, 3.0, 100.0])
def test_a_shift_multiplies_durations(times: float) -> None:
    """A shift by ln(x) moves the median by the factor x."""
    before = dense(*bell(math.log(2.0), 0.4))
    after = GridDistribution(shifted(before, math.log(times)))
    assert after.quantile_s(0.5) == pytest.approx(2.0 * times, rel=0.05)
