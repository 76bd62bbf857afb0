"""When jobs arrive."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from agentkv.evals.workload.plans import BURST_JOBS, arrival_times_s


def times(how: str | list[float] = "poisson", num_jobs: int | None = 4000) -> list[float]:
    return arrival_times_s(how, seed=3, jps=4.0, num_jobs=num_jobs, duration_s=None)


def test_random_arrivals_keep_the_rate() -> None:
    """The gaps of a Poisson process have mean 1/rate, and a deviation as large."""
    gaps_s = [later - earlier for earlier, later in pairwise(times())]
    assert statistics.fmean(gaps_s) == pytest.approx(0.25, rel=0.05)
    assert statistics.stdev(gaps_s) == pytest.approx(0.25, rel=0.05)


def test_bursts_come_together_at_the_same_rate() -> None:
    """Eight jobs arrive at one time, and the rate holds over all bursts."""
    found = times("burst")
    assert len(set(found[:BURST_JOBS])) == 1
    assert len(set(found)) == len(found) / BURST_JOBS
    assert len(found) / found[-1] == pytest.approx(4.0, rel=0.15)


def test_given_times_are_put_in_order() -> None:
    """Given times are sorted and cut to the number of jobs."""
    assert times([3.0, 0.0, 1.5], None) == [0.0, 1.5, 3.0]
    assert times([3.0, 0.0, 1.5], 2) == [0.0, 1.5]
