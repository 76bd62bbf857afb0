"""Scores of forecasts equal values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.predictor.replay import EDGES_S
from studies.predictor.scores import (
    UNIFORM_SHARE,
    auc,
    calibration,
    intervals,
    is_over,
    log_errors,
    log_loss,
    regret_s,
    scores,
)


def forecasts(*rows: dict[str, Any]) -> pd.DataFrame:
    """Forecasts with the fields that matter to a test; the others are plain."""
    plain = {
        **{"trace": "t", "session": "s0", "duration_s": 1.0, "bound": "exact"},
        **{"speed": "uncertain", "p50_s": 1.0, "share_below": 0.5},
        **{"effective_ttl_s": 2.0, "continuum_ttl_s": 2.0},
        **{f"over_{edge_s:g}": 0.5 for edge_s in EDGES_S},
    }
    return pd.DataFrame([plain | row for row in rows])


def at_5_s(pairs: list[tuple[float, bool]]) -> pd.DataFrame:
    """Forecasts with these P(> 5 s), of commands that were longer or not."""
    return forecasts(
        *({"over_5": p, "duration_s": 9.0 if is_long else 1.0} for p, is_long in pairs)
    )


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.5, 1.0]), st.booleans()), min_size=1, max_size=30
    )
)
def test_auc_equals_the_count_over_all_pairs(rows: list[tuple[float, bool]]) -> None:
    """The ranks give the same as comparing every positive with every negative."""
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    wins = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    num_pairs = len(positives) * len(negatives)
    expected = wins / num_pairs if num_pairs else math.nan
    assert auc(at_5_s(rows), 5.0) == pytest.approx(expected, nan_ok=True)


def test_rows_known_by_a_bound_count_where_it_decides() -> None:
    """At most 3 s is a negative above 5 s, unknown above 1 s; a time-out at 8 s is a positive."""
    rows = forecasts(
        {"duration_s": 3.0, "bound": "upper"},
        {"duration_s": 8.0, "bound": "lower"},
        {"duration_s": 4.0},
    )
    assert is_over(rows, 5.0).tolist() == [0.0, 1.0, 0.0]
    assert is_over(rows, 1.0).dropna().tolist() == [1.0, 1.0]
    assert is_over(rows, 10.0).dropna().tolist() == [0.0, 0.0]


def test_the_log_error_is_a_median_over_measured_rows() -> None:
    """With p50 of 1 s against 1, 2, 8 and 0 s the bounded row does not count, and 0 s is 0.01 s."""
    measured = [{"duration_s": seconds} for seconds in (1.0, 2.0, 8.0, 0.0)]
    bounded = {"duration_s": 3.0, "bound": "upper"}
    errors = log_errors(forecasts(*measured, bounded))
    assert errors[:4] == pytest.approx([0.0, math.log(2), math.log(8), math.log(100)])
    assert math.isnan(errors[4])
    assert scores(forecasts(*measured[:3], bounded))["median_abs_log_error"] == math.log(2)


@pytest.mark.parametrize(("duration_s", "mass"), [(7.0, 0.25), (10.0, 0.25), (1000.0, 0.0)])
def test_the_log_loss_is_of_the_bin_the_duration_fell_into(duration_s: float, mass: float) -> None:
    """A bin's mass is mixed with a thousandth of even bins, so a wrong forecast costs 9.3."""
    p_over = {f"over_{s:g}": 1.0 if s < 5 else {5: 0.5, 10: 0.25}.get(s, 0.0) for s in EDGES_S}
    mixed = (1 - UNIFORM_SHARE) * mass + UNIFORM_SHARE / (len(EDGES_S) + 1)
    rows = forecasts({"duration_s": duration_s, **p_over})
    assert log_loss(rows) == pytest.approx(-math.log(mixed))


def test_calibration_groups_by_predicted_tenth() -> None:
    """Each tenth has its rows, mean prediction and observed share; probability 1 is in the last."""
    rows = at_5_s([(0.12, False), (0.18, True), (1.0, True)])
    table = calibration(rows)
    assert table.n.tolist() == [0, 2, *[0] * 7, 1]
    assert (table.predicted[1], table.observed[1], table.observed[9]) == (0.15, 0.5, 1.0)
    assert scores(rows)["calibration_error"] == pytest.approx(2 / 3 * 0.35)


def test_the_pit_counts_rows_by_tenth() -> None:
    """Places 0.05 and 1.0 of the forecasts' distributions go to the first and the last tenth."""
    rows = forecasts({"share_below": 0.05}, {"share_below": 1.0})
    assert scores(rows)["pit_shares"] == [0.5, *[0.0] * 8, 0.5]


@pytest.mark.parametrize(
    ("duration_s", "ttl_s", "expected_s"),
    [
        (1.0, 3.0, 0.0),  # returned within its TTL, as the oracle would have it
        (9.0, 3.0, 3.0),  # 3 s in vain and the rebuild that the oracle pays too
        (9.0, 0.0, 0.0),  # freed at once, rightly
        (1.0, 0.0, 6.4),  # freed at once, wrongly: 7.4 s instead of 1
        (9.0, 9.0, 1.6),  # held through, at more than a rebuild
    ],
)
def test_regret_is_what_is_paid_above_the_oracle(
    duration_s: float, ttl_s: float, expected_s: float
) -> None:
    """A turn pays for holding until its TTL, and for a rebuild if its tool outlasts that."""
    rows = forecasts({"duration_s": duration_s, "effective_ttl_s": ttl_s})
    assert regret_s(rows, rows.effective_ttl_s) == pytest.approx(expected_s)


def test_regret_leaves_out_rows_of_at_most_3_s() -> None:
    """Whether their TTL was long enough is not known; a time-out's TTL is judged."""
    bounded = {"duration_s": 3.0, "bound": "upper"}
    assert regret_s(forecasts(bounded), 0.0) == 0.0
    lower = {"duration_s": 9.0, "bound": "lower"}
    assert regret_s(forecasts(bounded, lower), 9.0) == pytest.approx(1.6)
    assert min(scores(forecasts(lower))["baseline_regrets"].values()) >= 0.0


def test_intervals_hold_the_score_and_are_seeded() -> None:
    """The same seed gives the same interval, and the score lies inside it."""
    rows = forecasts(
        *(
            {"duration_s": float(i % 12), "session": f"s{i % 7}", "over_5": (i * 7 % 12) / 12}
            for i in range(60)
        )
    )
    found = intervals(rows, num_resamples=100, seed=3)
    assert found == intervals(rows, num_resamples=100, seed=3)
    low, high = found["auc_5"]
    assert low <= auc(rows, 5.0) <= high
    assert low < high


def test_undefined_scores_have_no_interval() -> None:
    """One row has no AUC however it is drawn, and no resamples give no interval."""
    one = forecasts({"duration_s": 3.0, "bound": "upper"})
    assert set(intervals(one, num_resamples=5, seed=0).values()) == {None}
    assert set(intervals(one, num_resamples=0, seed=0).values()) == {None}
    assert np.isnan([scores(one)[name] for name in ("auc_5", "log_loss")]).all()
