"""Student's t: tail areas and quantiles against values computed with SciPy 1.17."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.student_t import t_density, t_quantile, t_survival

DEGREES = st.sampled_from([1.0, 2.0, 2.5, 3.0, 7.0, 25.0, 202.0])


@pytest.mark.parametrize(
    ("t", "num_degrees", "survival"),
    [
        (0, 3, 0.5),
        (1, 1, 0.25),
        (-1.5, 4, 0.896),
        (2, 10, 0.03669401738537018),
        (2.5, 2.5, 0.0522849815390777),
        (6.5, 200, 3.13361720515586e-10),
        (40, 202, 3.037391631891732e-98),
    ],
)
def test_survival_is_the_tail_area(t: float, num_degrees: float, survival: float) -> None:
    """Tail areas are right in the middle, far out, and for fractional degrees of freedom."""
    assert t_survival(t, num_degrees) == pytest.approx(survival, rel=1e-9)


@pytest.mark.parametrize(
    ("share", "num_degrees", "quantile"),
    [
        (0.9, 2, 1.8856180831641272),
        (0.9, 7, 1.4149239276505086),
        (0.95, 202, 1.652431963580074),
        (0.1, 3, -1.6377443536962089),
        (0.5, 9, 0.0),
        (0.999999, 4, 41.5778541501515),
    ],
)
def test_quantile_is_the_known_one(share: float, num_degrees: float, quantile: float) -> None:
    """Quantiles are right on both sides of the middle and in the heavy tail."""
    assert t_quantile(share, num_degrees) == pytest.approx(quantile, rel=1e-9)


@given(st.floats(0.001, 0.999), DEGREES)
def test_quantile_inverts_survival(share: float, num_degrees: float) -> None:
    """Beyond the quantile of a share lies the rest."""
    assert t_survival(t_quantile(share, num_degrees), num_degrees) == pytest.approx(1 - share)


@given(st.floats(-1e200, 1e200), DEGREES)
def test_survival_is_a_probability(t: float, num_degrees: float) -> None:
    """However far out, the tail area stays within 0 and 1."""
    assert 0 <= t_survival(t, num_degrees) <= 1


@given(st.floats(-20, 20), DEGREES)
def test_density_is_the_slope_of_survival(t: float, num_degrees: float) -> None:
    """The tail area falls at the rate of the density."""
    step = 1e-4
    fall = t_survival(t - step, num_degrees) - t_survival(t + step, num_degrees)
    assert fall / (2 * step) == pytest.approx(t_density(t, num_degrees), rel=1e-3, abs=1e-10)
