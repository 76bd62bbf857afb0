"""When jobs arrive."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from agentkv.errors import InputError
from agentkv.evals.workload.plans import BURST_JOBS, arrival_times_s, deal_jobs
from agentkv.evals.workload.workloads import make_workload


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


def test_jobs_are_dealt_by_load() -> None:
    """A client of three times the load gets about three of four jobs; more jobs change nothing."""
    made = [make_workload("bfcl", seed=1, num_jobs=n, jps=1.0) for n in (400, 40)]
    many, few = (deal_jobs(workload, {"heavy": 3.0, "light": 1.0}).jobs for workload in made)
    clients = [job.client for job in many]
    assert clients.count("heavy") == pytest.approx(300, rel=0.1)
    assert [job.client for job in few] == clients[:40]


@pytest.mark.parametrize("loads", [{"": 1.0}, {"a b": 1.0}, {"a": 0.0}, {"a": float("inf")}])
def test_clients_without_a_name_or_a_load_are_refused(loads: dict[str, float]) -> None:
    """The error names the client and its load."""
    workload = make_workload("bfcl", seed=1, num_jobs=1, jps=1.0)
    with pytest.raises(InputError, match="clients: got"):
        deal_jobs(workload, loads)
