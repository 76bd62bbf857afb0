"""Scores against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.evals.predictor_replay import EDGES_S
from agentkv.evals.predictor_scores import (
    UNIFORM_SHARE,
    auc,
    brier,
    calibration,
    calibration_error,
    log_loss,
    median_abs_log_error,
    pit_shares,
    scored_at,
    speed_confusion,
    summarize,
)
from agentkv.evals.predictor_spread import intervals

from .trace_rows import forecast, row


def arrays(scores: list[float], labels: list[bool]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(scores, dtype=float), np.array(labels, dtype=bool)


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([0.1, 0.4, 0.35, 0.8], [False, False, True, True], 0.75),
        ([0.5, 0.5, 0.5], [True, False, False], 0.5),
        ([0.1, 0.5, 0.5, 0.9], [False, True, False, True], 0.875),
        ([0.9, 0.1], [False, True], 0.0),
        ([0.9, 0.1], [True, True], None),
        ([], [], None),
    ],
)
def test_auc_counts_ordered_pairs(
    scores: list[float], labels: list[bool], expected: float | None
) -> None:
    """The share of pairs in the right order, ties half; None for one class."""
    assert auc(*arrays(scores, labels)) == expected


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.booleans()), max_size=30))
def test_auc_equals_the_count_over_all_pairs(rows: list[tuple[float, bool]]) -> None:
    """The ranks give what comparing every positive with every negative gives."""
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    expected = wins / (len(positives) * len(negatives)) if positives and negatives else None
    assert auc(*arrays([s for s, _ in rows], [y for _, y in rows])) == pytest.approx(expected)


def test_rows_known_by_a_bound_count_where_it_decides() -> None:
    """At most 3 s: a negative above 5 s, unknown above 1 s; timed out at 8 s: a positive."""
    forecasts = [
        forecast(row(3.0, bound="upper")),
        forecast(row(8.0, bound="lower")),
        forecast(row(4.0)),
    ]
    assert scored_at(forecasts, 5.0)[1].tolist() == [False, True, False]
    assert scored_at(forecasts, 1.0)[1].tolist() == [True, True]
    assert scored_at(forecasts, 10.0)[1].tolist() == [False, False]
    assert scored_at(forecasts, 5.0, exact_only=True)[1].tolist() == [False]


def test_the_log_error_is_a_median_over_measured_rows() -> None:
    """p50 of 1 s against 1, 2 and 8 s; the bounded row does not count."""
    rows = [row(1.0), row(2.0), row(8.0), row(3.0, bound="upper")]
    assert median_abs_log_error([forecast(r) for r in rows]) == pytest.approx(math.log(2))
    assert median_abs_log_error([forecast(row(3.0, bound="upper"))]) is None


def test_a_duration_of_zero_has_a_log_error() -> None:
    """It counts as 0.01 s."""
    assert median_abs_log_error([forecast(row(0.0))]) == pytest.approx(math.log(100))


def test_the_log_loss_is_of_the_bin_the_duration_fell_into() -> None:
    """Mass 0.25 between 5 and 10 s, mixed with a thousandth of even bins."""
    p_over = tuple(1.0 if s < 5 else 0.5 if s == 5 else 0.25 if s == 10 else 0.0 for s in EDGES_S)
    mixed = (1 - UNIFORM_SHARE) * 0.25 + UNIFORM_SHARE / (len(EDGES_S) + 1)
    assert log_loss([forecast(row(7.0), p_over=p_over)]) == pytest.approx(-math.log(mixed))
    assert log_loss([forecast(row(10.0), p_over=p_over)]) == pytest.approx(-math.log(mixed))


def test_the_log_loss_of_a_sure_and_wrong_forecast_is_finite() -> None:
    """What was called impossible costs -ln of a thousandth's share of a bin."""
    impossible = forecast(row(1000.0), p_over=(0.0,) * len(EDGES_S))
    loss = log_loss([impossible])
    assert loss == pytest.approx(-math.log(UNIFORM_SHARE / (len(EDGES_S) + 1)))


def test_brier_is_the_mean_squared_distance() -> None:
    """(0.2^2 + 0.4^2) / 2."""
    assert brier(*arrays([0.8, 0.4], [True, False])) == pytest.approx(0.1)
    assert brier(*arrays([], [])) is None


def test_calibration_groups_by_predicted_tenth() -> None:
    """Probability 1 belongs to the last tenth."""
    table = calibration(*arrays([0.12, 0.18, 1.0], [False, True, True]))
    assert (table[1]["n"], table[1]["predicted"], table[1]["observed"]) == (2, 0.15, 0.5)
    assert (table[9]["n"], table[9]["observed"]) == (1, 1.0)
    assert table[5]["observed"] is None
    assert calibration_error(table) == pytest.approx(2 / 3 * 0.35)


def test_the_pit_counts_measured_rows_by_tenth() -> None:
    """Places 0.05 and 1.0 go to the first and the last."""
    shares = pit_shares([forecast(row(1.0), share_below=place) for place in (0.05, 1.0)])
    assert shares == [0.5, *[0.0] * 8, 0.5]


def test_the_confusion_leaves_out_what_is_not_known() -> None:
    """At most 3 s may be fast or not."""
    forecasts = [
        forecast(row(0.5), speed="fast"),
        forecast(row(3.0), speed="slow"),
        forecast(row(9.0), speed="slow"),
        forecast(row(20.0, bound="lower"), speed="fast"),
        forecast(row(3.0, bound="upper"), speed="fast"),
    ]
    table = speed_confusion(forecasts)
    assert table["fast (<= 1 s)"] == {"fast": 1, "uncertain": 0, "slow": 0}
    assert table["between"] == {"fast": 0, "uncertain": 0, "slow": 1}
    assert table["slow (> 5 s)"] == {"fast": 1, "uncertain": 0, "slow": 1}


def test_nothing_to_score_is_none_not_a_crash() -> None:
    """Only bounded rows: no AUC, no error, no loss."""
    summary = summarize([forecast(row(3.0, bound="upper"))])
    assert set(summary["auc"].values()) == {None}
    assert summary["median_abs_log_error"] is None
    assert summary["log_loss"] is None


def test_intervals_hold_the_score_and_are_seeded() -> None:
    """The same seed gives the same interval, and the score lies inside."""
    forecasts = [
        forecast(row(float(i % 12), session=f"s{i % 7}"), p_over_5_s=(i * 7 % 12) / 12)
        for i in range(60)
    ]
    spread = intervals(forecasts, num_resamples=100, seed=3)
    assert spread == intervals(forecasts, num_resamples=100, seed=3)
    score = auc(*scored_at(forecasts, 5.0))
    low, high = spread["auc_5"]
    assert low <= score <= high
    assert low < high


def test_intervals_without_data_are_none() -> None:
    """No row, or no resample asked for."""
    assert set(intervals([], num_resamples=10, seed=0).values()) == {None}
    assert intervals([forecast(row())], num_resamples=0, seed=0)["auc_5"] is None
