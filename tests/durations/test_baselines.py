"""Empirical distributions, with bounds, and the estimator that backs off over them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.commands import analyze_command
from agentkv.durations.baselines import (
    MAX_WORDS,
    DurationCurve,
    EmpiricalEstimator,
    FirstWordEstimator,
)
from agentkv.durations.posterior import WINDOW

RUNS = st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=WINDOW + 20)


def _curve(*runs: tuple[float, bool]) -> DurationCurve:
    curve = DurationCurve()
    for duration_s, is_censored in runs:
        curve.add(duration_s, censored=is_censored)
    return curve


@pytest.mark.parametrize(
    ("seconds", "p_over"), [(0.5, 1.0), (1.0, 0.75), (2.0, 0.25), (3.9, 0.25), (4.0, 0.0)]
)
def test_share_over_is_counted(seconds: float, p_over: float) -> None:
    """Of 1, 2, 2 and 4 s the share that took strictly longer."""
    curve = _curve((2.0, False), (1.0, False), (4.0, False), (2.0, False))
    assert curve.distribution().p_over(seconds) == pytest.approx(p_over)


@pytest.mark.parametrize(
    ("share", "seconds"), [(0.1, 1.0), (0.25, 1.0), (0.5, 2.0), (0.76, 4.0), (0.99, 4.0)]
)
def test_quantile_is_an_observed_duration(share: float, seconds: float) -> None:
    """The shortest duration within which that share of 1, 2, 2 and 4 s ended."""
    curve = _curve((2.0, False), (1.0, False), (4.0, False), (2.0, False))
    assert curve.distribution().quantile_s(share) == seconds


def test_bounds_move_their_share_to_what_is_longer() -> None:
    """Kaplan and Meier by hand: 1 of 4 ended at 1 s, one was cut at 2 s, 1 of 2 left at 3 s."""
    distribution = _curve((1.0, False), (2.0, True), (3.0, False), (9.0, True)).distribution()
    assert distribution.p_over(2.5) == pytest.approx(3 / 4)
    assert distribution.p_over(3.0) == pytest.approx(3 / 8)
    assert distribution.p_over(9.0) == 0


@given(RUNS)
def test_distribution_is_monotone(runs: list[tuple[float, bool]]) -> None:
    """Whatever was observed, p_over falls from at most 1 to 0 and quantiles rise."""
    distribution = _curve(*runs).distribution()
    p_over = [distribution.p_over(seconds) for seconds in (0, 1, 10, 1e3, 1e6)]
    assert p_over == sorted(p_over, reverse=True)
    assert p_over[-1] == pytest.approx(0)
    quantiles_s = [distribution.quantile_s(share) for share in (0.1, 0.5, 0.9)]
    assert quantiles_s == sorted(quantiles_s)


@given(RUNS)
def test_restored_curve_is_the_same(runs: list[tuple[float, bool]]) -> None:
    """A curve that went through JSON gives the same distribution."""
    curve, restored = _curve(*runs), DurationCurve()
    restored.restore(json.loads(json.dumps(curve.state())))
    assert restored.distribution() == curve.distribution()


@pytest.mark.parametrize(
    "state", [3, [1.0], [["a", 0]], [[-1.0, 0]], [[float("nan"), 0]], [[10**400, 0]]]
)
def test_foreign_state_is_refused(state: object) -> None:
    """What is no list of durations is an error."""
    with pytest.raises((TypeError, ValueError)):
        DurationCurve().restore(state)


def test_window_forgets_the_oldest() -> None:
    """After WINDOW more durations the first ones count no more."""
    curve = _curve(*[(100.0, False)] * 5, *[(1.0, False)] * WINDOW)
    assert curve.distribution().p_over(1.0) == pytest.approx(0)
    assert len(curve) == WINDOW


@pytest.mark.parametrize(
    ("durations_s", "speed", "ttl_s"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], "fast", 0.5),
        ([6.0, 7.0, 8.0, 9.0, 10.0], "slow", 0.0),
        ([0.1, 7.0, 8.0, 9.0, 10.0], "uncertain", 2.0),
        ([0.1, 0.2, 0.3, 0.4], "uncertain", 2.0),
    ],
)
def test_verdict_follows_the_counts(durations_s: list[float], speed: str, ttl_s: float) -> None:
    """Fast and slow need over 0.85 of at least five runs; fast pins for the 0.9 quantile."""
    estimator, command = EmpiricalEstimator(), analyze_command("frobnicate")
    for duration_s in durations_s:
        estimator.observe(command, duration_s, censored=False)
    prediction = estimator.predict(command)
    assert (prediction.speed, prediction.ttl_s) == (speed, ttl_s)


def test_explanation_gives_the_counts() -> None:
    """A person reads how many runs there were and how many of them were cut off."""
    estimator, command = EmpiricalEstimator(), analyze_command("frobnicate")
    for duration_s in (6.0, 7.0, 8.0, 9.0, 120.0):
        estimator.observe(command, duration_s, censored=duration_s > 100)
    assert estimator.predict(command).explanation == (
        "5 runs of `frobnicate` (1 of them cut off): half end within 8 s, 0% within 1 s, "
        "100% take over 5 s."
    )


def test_restored_estimator_predicts_the_same() -> None:
    """Saved and loaded, it says the same."""
    estimator, restored = EmpiricalEstimator(), EmpiricalEstimator()
    for number in range(12):
        estimator.observe(analyze_command("go test"), number / 3, censored=number % 4 == 0)
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("go test ./b", "go vet", "ls", ""):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)


def _observed(*runs: tuple[str, float]) -> FirstWordEstimator:
    estimator = FirstWordEstimator()
    for text, duration_s in runs:
        estimator.observe(analyze_command(text), duration_s, censored=False)
    return estimator


@pytest.mark.parametrize(
    ("command", "p50_s"),
    [("cd a && pytest", 0.1), ("pytest -q", 40.0), ("unheard-of", 20.0), ("", 20.0)],
)
def test_median_is_that_of_the_first_word(command: str, p50_s: float) -> None:
    """A test run behind a `cd` is a `cd` to it; a new word gets the median of all."""
    estimator = _observed(("cd b", 0.1), ("pytest", 40.0), ("wc", 20.0))
    assert estimator.predict(analyze_command(command)).p50_s == p50_s


def test_nothing_observed_is_uncertain() -> None:
    """Before the first observation there is a broad distribution and no verdict."""
    prediction = FirstWordEstimator().predict(analyze_command("ls"))
    assert prediction.speed == "uncertain"
    assert 0 < prediction.p_over(5.0) < 1


def test_words_are_bounded() -> None:
    """However many words come, a fixed number is kept."""
    estimator = _observed(*((f"word{number}", 1.0) for number in range(MAX_WORDS + 10)))
    assert len(estimator.state()["by_word"]) == MAX_WORDS


def test_restored_first_words_predict_the_same() -> None:
    """Saved and loaded, it says the same."""
    estimator, restored = _observed(("ls", 0.1), ("make", 40.0)), FirstWordEstimator()
    restored.restore(json.loads(json.dumps(estimator.state())))
    for text in ("ls", "make", "other"):
        command = analyze_command(text)
        assert restored.predict(command) == estimator.predict(command)


@pytest.mark.parametrize("state", [{}, {"by_word": [], "all": []}, {"by_word": {"a": 1}}])
def test_foreign_first_words_are_refused(state: dict[str, object]) -> None:
    """State of another shape is an error."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        FirstWordEstimator().restore(state)
