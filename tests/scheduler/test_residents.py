"""How much memory the jobs on the GPU are expected to hold together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.integrations.vllm.job_growth import MAX_TURNS, JobLengths
from agentkv.integrations.vllm.residents import Resident, Residents

NOTHING = Resident(0, 0, 1)
RESIDENT = st.builds(
    Resident,
    st.integers(0, 1000),
    st.floats(0, 50, width=32),
    st.integers(1, MAX_TURNS),
    st.none() | st.integers(0, MAX_TURNS),
)
LENGTHS = st.lists(st.integers(1, 2 * MAX_TURNS), max_size=12)


def residents(*jobs: Resident, ended: list[int] | None = None) -> Residents:
    lengths = JobLengths()
    for num_turns in ended or []:
        lengths.job_ended(num_turns)
    made = Residents(lengths)
    for number, job in enumerate(jobs):
        made.put(f"job-{number}", job)
    return made


def odds_counted(job: Resident, ahead: int, ended: list[int]) -> float:
    """That a job has a turn so many ahead of its present one."""
    if job.turns_left is not None:
        return float(ahead <= job.turns_left)
    lasting = [length for length in ended if length >= job.turn]
    if not lasting:
        return float(ahead <= 1)
    return sum(length >= job.turn + ahead for length in lasting) / len(lasting)


def peak_played_out(jobs: list[Resident], ended: list[int]) -> float:
    """Turn by turn, each job with what it has grown to, as likely as it is to be there."""
    return max(
        sum(
            odds_counted(job, ahead, ended) * (job.num_blocks + (ahead + 1) * job.blocks_per_turn)
            for job in jobs
        )
        for ahead in range(MAX_TURNS + 1)
    )


def test_jobs_together_peak_where_growth_and_endings_balance() -> None:
    """Two jobs of 10 blocks growing by 1: at the end of the shorter 2 x 15, of the longer 20."""
    longer = Resident(10, 1, 1, turns_left=9)
    assert residents(Resident(10, 1, 1, turns_left=4)).peak_with(longer) == 30
    assert residents(longer).peak_with(NOTHING) == 20
    assert residents().peak_with(longer) == 20
    assert residents().peak_with(NOTHING) == 0


def test_a_turn_that_only_some_jobs_have_counts_by_how_many_have_it() -> None:
    """Of two jobs one ended with its second turn: the third is worth half of its 16 blocks; with
    another one that is there for certain it makes the peak."""
    job = Resident(10, 2, 2)
    assert residents(ended=[2, 3]).peak_with(job) == 12
    assert residents(Resident(10, 10, 1, turns_left=1), ended=[2, 3]).peak_with(job) == 30 + 14 / 2


@given(jobs=st.lists(RESIDENT, max_size=12), newcomer=RESIDENT, ended=LENGTHS)
def test_the_peak_is_that_of_playing_it_out(
    jobs: list[Resident], newcomer: Resident, ended: list[int]
) -> None:
    """Whatever jobs there are, and were."""
    expected = peak_played_out([*jobs, newcomer], ended)
    assert residents(*jobs, ended=ended).peak_with(newcomer) == pytest.approx(expected)


@given(jobs=st.lists(st.tuples(st.sampled_from("abcd"), st.none() | RESIDENT), max_size=30))
def test_changes_leave_what_the_last_of_each_job_says(
    jobs: list[tuple[str, Resident | None]],
) -> None:
    """A job counts once, as it was put last, and not at all once it was dropped."""
    there = residents()
    last: dict[str, Resident] = {}
    for job_id, resident in jobs:
        if resident is None:
            there.drop(job_id)
            last.pop(job_id, None)
        else:
            there.put(job_id, resident)
            last[job_id] = resident
    assert len(there) == len(last)
    expected = peak_played_out(list(last.values()), [])
    assert there.peak_with(NOTHING) == pytest.approx(expected, abs=1e-6)


def test_a_job_beyond_the_horizon_counts_up_to_it() -> None:
    """What it does later is too far ahead."""
    assert residents().peak_with(Resident(1, 1, 1, 10**9)) == 2 + MAX_TURNS
    assert residents(ended=[10**9]).peak_with(Resident(1, 1, 1)) == 2 + MAX_TURNS
    assert residents(ended=[10**9]).peak_with(Resident(1, 1, 10**9)) == 2 + MAX_TURNS
