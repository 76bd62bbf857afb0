"""The baselines look up earlier runs by a key and take their distribution as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.durations.posterior import WINDOW
from studies.predictor.baselines import KaplanMeier, Lookup, empirical, first_word

RUNS = st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=40)


def learned(predictor: Lookup, command: str, *durations_s: float) -> Lookup:
    for duration_s in durations_s:
        predictor.observe(command, duration_s)
    return predictor


def test_bounds_move_their_share_to_what_is_longer() -> None:
    """Kaplan and Meier by hand: 1 of 4 ended at 1 s, one was cut at 2 s, 1 of 2 left at 3 s."""
    curve = KaplanMeier.of([(1.0, False), (2.0, True), (3.0, False), (9.0, True)])
    assert curve.p_over(2.5) == pytest.approx(3 / 4)
    assert curve.p_over(3.0) == pytest.approx(3 / 8)
    assert curve.p_over(9.0) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40), st.floats(0.01, 0.99))
def test_measured_runs_are_counted(durations_s: list[float], share: float) -> None:
    """P(over) is the share that took longer; a quantile is the time in which that share ended."""
    curve = KaplanMeier.of([(seconds, False) for seconds in durations_s])
    for seconds in (0.5, *durations_s):
        longer = sum(each > seconds for each in durations_s) / len(durations_s)
        assert curve.p_over(seconds) == pytest.approx(longer)
    quantile_s = curve.quantile_s(share)
    assert quantile_s in durations_s
    assert curve.p_over(quantile_s) <= 1 - share + 1e-9


@given(RUNS)
def test_distribution_is_monotone(runs: list[tuple[float, bool]]) -> None:
    """Probabilities fall from at most 1 to 0 and quantiles rise, for any runs."""
    curve = KaplanMeier.of(runs)
    p_over = [curve.p_over(seconds) for seconds in (0, 1, 10, 1e3, 1e6)]
    assert p_over == sorted(p_over, reverse=True)
    assert p_over[-1] == pytest.approx(0)
    quantiles_s = [curve.quantile_s(share) for share in (0.1, 0.5, 0.9)]
    assert quantiles_s == sorted(quantiles_s)


@pytest.mark.parametrize(
    ("durations_s", "speed", "ttl_s"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], "fast", 0.5),
        ([6.0, 7.0, 8.0, 9.0, 10.0], "slow", 0.0),
        ([0.1, 7.0, 8.0, 9.0, 10.0], "uncertain", 2.0),
        ([0.1, 0.2, 0.3, 0.4], "uncertain", 2.0),
        ([100.0] * 5 + [0.1] * WINDOW, "fast", 0.1),
    ],
)
def test_verdict_follows_the_counts(durations_s: list[float], speed: str, ttl_s: float) -> None:
    """Fast and slow need over 0.85 of at least five of the latest runs."""
    prediction = learned(empirical(), "frobnicate", *durations_s).predict("frobnicate")
    assert (prediction.speed, prediction.ttl_s) == (speed, ttl_s)


@pytest.mark.parametrize(
    ("predictor", "seen", "asked", "speed"),
    [
        (empirical(), "cd /x && go test ./a", "go test ./b", "slow"),
        (empirical(), "go vet", "go test", "slow"),
        (first_word(), "cd /x && pytest", "cd /y", "slow"),
        (first_word(), "cd /x", "ls", "slow"),
        (first_word(), "", " ", "slow"),
    ],
)
def test_the_most_specific_key_with_runs_decides(
    predictor: Lookup, seen: str, asked: str, speed: str
) -> None:
    """`empirical` knows the programs that run, `first_word` the text; both know all commands."""
    learned(predictor, "unrelated", *[0.1] * 4)
    assert learned(predictor, seen, *[60.0] * 30).predict(asked).speed == speed
