"""Student's t equals SciPy's, and the posterior its conjugate update."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agentkv.durations.posterior import (
    WINDOW,
    LogWindow,
    Posterior,
    t_density,
    t_quantile,
    t_survival,
)

DEGREES = st.sampled_from([1.0, 2.0, 2.5, 3.0, 7.0, 25.0, 202.0])


@given(st.floats(-40, 40), DEGREES)
def test_student_t_equals_scipys(t: float, num_degrees: float) -> None:
    """Tail areas and densities are SciPy's, in the middle, far out, and for fractional degrees."""
    # Near 0 SciPy's is off by 1e-9 itself: with one degree the area is .5 - t / pi there.
    assert t_survival(t, num_degrees) == pytest.approx(stats.t.sf(t, num_degrees), rel=1e-8)
    assert t_density(t, num_degrees) == pytest.approx(stats.t.pdf(t, num_degrees), rel=1e-9)


@given(st.floats(1e-6, 1 - 1e-6), DEGREES)
def test_quantile_inverts_survival(share: float, num_degrees: float) -> None:
    """The tail area at a quantile is the rest of the share, and far out it stays within 0..1."""
    assert t_survival(t_quantile(share, num_degrees), num_degrees) == pytest.approx(1 - share)
    assert 0 <= t_survival(1e200 * share, num_degrees) <= 1


LOGS = st.floats(-7, 14)


def _window(*logs: float) -> LogWindow:
    window = LogWindow()
    for log in logs:
        window.add(log, 0.0)
    return window


def test_update_is_conjugate() -> None:
    """The prior is 0, 1, 1, 1; ln durations 1, 2, 3 add 6/4; 3; 3/2; (2 + 3/4 * 4) / 2."""
    assert LogWindow().posterior() == Posterior(0.0, 1.0, 1.0, 1.0)
    assert _window(1.0, 2.0, 3.0).posterior() == Posterior(1.5, 4.0, 2.5, 3.5)


def test_predictive_is_student_t() -> None:
    """Location, scale and degrees of freedom of the next run follow from the posterior."""
    predictive = Posterior(1.5, 4.0, 2.5, 3.5).predictive()
    assert predictive.num_degrees == 5.0
    assert predictive.scale_ln == pytest.approx(math.sqrt(3.5 * 5 / (2.5 * 4)))
    assert predictive.quantile_s(0.5) == pytest.approx(math.exp(1.5))


def test_window_forgets_the_oldest() -> None:
    """After WINDOW more durations the first ones leave no trace."""
    window = _window(*[9.0] * 5, *[1.0] * WINDOW)
    assert window.posterior() == _window(*[1.0] * WINDOW).posterior()


@given(st.lists(st.tuples(LOGS, st.floats(0, 30)), max_size=WINDOW + 30))
def test_restored_window_is_the_same(entries: list[tuple[float, float]]) -> None:
    """A window that went through JSON gives the very same posterior, however many it dropped."""
    window, restored = LogWindow(), LogWindow()
    for mean, variance in entries:
        window.add(mean, variance)
    restored.restore(json.loads(json.dumps(window.state())))
    assert restored.posterior() == window.posterior()


@pytest.mark.parametrize(
    "state",
    [3, [1.0], [["a", 0.0]], [[math.nan, 0.0]], [[0.0, -1.0]], [[1e300, 0.0]], [[10**400, 0.0]]],
)
def test_foreign_state_is_refused(state: object) -> None:
    """State of another shape is an error, not a wrong posterior."""
    with pytest.raises((TypeError, ValueError)):
        LogWindow().restore(state)


@given(st.lists(LOGS, max_size=40), st.floats(-7, 14))
def test_imputed_duration_exceeds_its_bound(logs: list[float], bound_ln: float) -> None:
    """The duration imputed for a bound lies beyond it, with a finite variance."""
    mean, variance = _window(*logs).posterior().beyond(bound_ln)
    assert mean >= bound_ln - 1e-9
    assert 0 <= variance < 100


def test_imputation_is_nearly_unbiased() -> None:
    """With half of 200 runs cut off at the median, the mean is found; the bounds alone miss it."""
    chance, window, as_measured = random.Random(1), LogWindow(), LogWindow()
    for _ in range(WINDOW):
        log = chance.gauss(4.0, 1.0)
        imputed = (log, 0.0) if log <= 4.0 else window.posterior().beyond(4.0)
        window.add(*imputed)
        as_measured.add(min(log, 4.0), 0.0)
    assert window.posterior().mean == pytest.approx(4.0, abs=0.3)
    assert as_measured.posterior().mean < 3.65


def test_bounds_alone_do_not_run_away() -> None:
    """200 runs all cut off at two minutes are estimated in minutes or hours, not in years."""
    window = LogWindow()
    for _ in range(WINDOW):
        window.add(*window.posterior().beyond(math.log(120)))
    assert 120 < window.posterior().predictive().quantile_s(0.5) < 3600
