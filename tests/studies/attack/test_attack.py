"""The attack study compares jobs that ended with jobs that did not within their time."""

from __future__ import annotations

import pytest

from studies.attack.__main__ import summarize


@pytest.mark.parametrize(
    ("ours_s", "stock_s", "ratio", "is_within_goal"),
    [
        (12.0, 10.0, 1.2, True),
        (13.0, 10.0, 1.3, False),
        (20.0, None, 0.2, True),
        (None, 90.0, 1.111, False),
        (None, None, 1.0, False),
    ],
)
def test_a_job_that_did_not_end_never_helps_a_policy(
    ours_s: float | None, stock_s: float | None, ratio: float, is_within_goal: bool
) -> None:
    """A job that did not end counts as the cap under stock, and misses the goal under a policy."""
    rows = [{"attack": "decodes", "job_s": {"agentkv": ours_s, "fcfs": stock_s}}]
    found = summarize(rows, cap_s=100.0)["decodes"]["agentkv"]
    assert found["ratio"] == pytest.approx(ratio)
    assert found["is_within_goal"] is is_within_goal
    assert found["ended"] == {"agentkv": ours_s is not None, "fcfs": stock_s is not None}
