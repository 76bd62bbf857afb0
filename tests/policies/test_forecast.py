"""How much memory the jobs on the GPU are expected to hold together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policies.forecast import MAX_TURNS, JobDemand, KVDemandForecast

NOTHING = JobDemand(0, 0, 0)
RESIDENT = st.builds(
    JobDemand,
    st.integers(0, 1000),
    st.integers(0, MAX_TURNS),
    st.floats(0, 50, width=32),
    st.booleans(),
)


def residents(*jobs: JobDemand) -> KVDemandForecast:
    made = KVDemandForecast()
    for number, job in enumerate(jobs):
        made.put(f"job-{number}", job)
    return made


def peak_played_out(jobs: list[JobDemand], idle_weight: float = 1.0) -> float:
    """Turn by turn: those that are not over have grown by as many blocks."""
    sums = [
        sum(
            (job.num_blocks + turn * job.blocks_per_turn) * (idle_weight if job.is_idle else 1.0)
            for job in jobs
            if job.turns_left >= turn
        )
        for turn in range(MAX_TURNS + 1)
    ]
    return max(sums)


def test_jobs_together_peak_where_growth_and_endings_balance() -> None:
    """Two jobs of 10 blocks growing by 1: at the end of the shorter 2 x 15, of the longer 20."""
    longer = JobDemand(10, 10, 1)
    assert residents(JobDemand(10, 5, 1)).peak_blocks_with(longer) == 30
    assert residents(longer).peak_blocks_with(NOTHING) == 20
    assert residents().peak_blocks_with(longer) == 20
    assert residents().peak_blocks_with(NOTHING) == 0


@given(jobs=st.lists(RESIDENT, max_size=12), newcomer=RESIDENT, idle_weight=st.floats(0, 1))
def test_the_peak_is_that_of_playing_it_out(
    jobs: list[JobDemand], newcomer: JobDemand, idle_weight: float
) -> None:
    """For any jobs, and any share of the idle ones that counts."""
    newcomer = newcomer._replace(is_idle=False)
    expected = peak_played_out([*jobs, newcomer], idle_weight)
    peak_blocks = residents(*jobs).peak_blocks_with(newcomer, idle_weight)
    assert peak_blocks == pytest.approx(expected, abs=1e-6)


@given(jobs=st.lists(st.tuples(st.sampled_from("abcd"), st.none() | RESIDENT), max_size=30))
def test_changes_leave_what_the_last_of_each_job_says(
    jobs: list[tuple[str, JobDemand | None]],
) -> None:
    """A job counts once, as it was put last, and not at all once it was dropped."""
    there = KVDemandForecast()
    last: dict[str, JobDemand] = {}
    for job_id, resident in jobs:
        if resident is None:
            there.remove(job_id)
            last.pop(job_id, None)
        else:
            there.put(job_id, resident)
            last[job_id] = resident
    assert there.peak_blocks_with(NOTHING) == pytest.approx(
        peak_played_out(list(last.values())), abs=1e-6
    )


def test_a_job_beyond_the_horizon_counts_up_to_it() -> None:
    """What it does later is too far ahead."""
    assert residents().peak_blocks_with(JobDemand(1, 1e9, 1)) == 1 + MAX_TURNS
