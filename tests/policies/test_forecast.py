"""How much memory the jobs on the GPU are expected to hold together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.policies.forecast import MAX_TURNS, JobDemand, KVDemandForecast, SharedPrefix

NOTHING = JobDemand(0, 0, 0)
PROMPT = SharedPrefix(10, "hash of ten blocks")
RESIDENT = st.builds(
    JobDemand,
    st.integers(0, 1000),
    st.integers(0, MAX_TURNS),
    st.floats(0, 50, width=32),
    st.booleans(),
    st.sampled_from([None, PROMPT, SharedPrefix(300, "hash of 300 blocks")]),
)


def residents(*jobs: JobDemand) -> KVDemandForecast:
    made = KVDemandForecast()
    for number, job in enumerate(jobs):
        made.put(f"job-{number}", job)
    return made


def peak_played_out(
    jobs: list[JobDemand],
    newcomer: JobDemand = NOTHING,
    idle_weight: float = 1.0,
    horizon_turns: int = MAX_TURNS,
) -> float:
    """Turn by turn: those that are not over have grown by as many blocks, next to the prefixes that
    the jobs share."""
    sums = [
        sum(
            (
                max(0, job.num_blocks - (job.prefix.num_blocks if job.prefix else 0))
                + turn * job.blocks_per_turn
            )
            * (idle_weight if job.is_idle else 1.0)
            for job in [*jobs, newcomer]
            if job.turns_left >= turn
        )
        for turn in range(horizon_turns + 1)
    ]
    return max(sums) + sum(prefix.num_blocks for prefix in {job.prefix for job in jobs} if prefix)


def test_jobs_together_peak_where_growth_and_endings_balance() -> None:
    """Two jobs of 10 blocks growing by 1: at the end of the shorter 2 x 15, of the longer 20."""
    longer = JobDemand(10, 10, 1)
    assert residents(JobDemand(10, 5, 1)).peak_blocks_with(longer) == 30
    assert residents(longer).peak_blocks_with(NOTHING) == 20
    assert residents().peak_blocks_with(longer) == 20
    assert residents().peak_blocks_with(NOTHING) == 0


@given(
    jobs=st.lists(RESIDENT, max_size=12),
    newcomer=RESIDENT,
    idle_weight=st.floats(0, 1),
    horizon_turns=st.integers(0, MAX_TURNS),
)
def test_the_peak_is_that_of_playing_it_out(
    jobs: list[JobDemand], newcomer: JobDemand, idle_weight: float, horizon_turns: int
) -> None:
    """For any jobs, any prefixes that they share, any share of the idle ones that counts, and any
    number of turns ahead."""
    newcomer = newcomer._replace(is_idle=False)
    expected = peak_played_out(jobs, newcomer, idle_weight, horizon_turns)
    peak_blocks = residents(*jobs).peak_blocks_with(newcomer, idle_weight, horizon_turns)
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


def sharing(num_blocks: float, turns_left: float = 1, **given: bool) -> JobDemand:
    """A job that does not grow, whose first blocks are those of PROMPT."""
    return JobDemand(num_blocks, turns_left, 0, prefix=PROMPT, **given)


@pytest.mark.parametrize(
    ("jobs", "blocks"),
    [
        ([sharing(12)], 12),
        ([sharing(12), sharing(13)], 10 + 2 + 3),
        ([sharing(12), sharing(13), JobDemand(12, 1, 0)], 10 + 2 + 3 + 12),
        ([sharing(12), JobDemand(12, 1, 0, prefix=SharedPrefix(10, "another"))], 12 + 12),
        ([sharing(12), sharing(4)], 12),
    ],
    ids=["one job", "two", "and one that shares nothing", "as long, but another", "cut short"],
)
def test_a_shared_prefix_counts_once(jobs: list[JobDemand], blocks: float) -> None:
    """Jobs that share ten blocks hold those once and each the rest of its own; a pin that was cut
    down to less than the prefix holds nothing else."""
    assert residents(*jobs).peak_blocks_with(NOTHING) == blocks


def test_a_shared_prefix_counts_until_its_last_job_is_gone() -> None:
    """It counts in full where idle KV counts for nothing, and beyond the expected end of the jobs
    that have it now, until the last of them is removed."""
    there = residents(sharing(12, is_idle=True), sharing(13, is_idle=True))
    there.put("longer", JobDemand(20, 5, 1))
    assert there.peak_blocks_with(NOTHING, idle_kv_weight=0.0) == 10 + 25
    there.remove("job-0")
    assert there.peak_blocks_with(NOTHING, idle_kv_weight=0.0) == 10 + 25
    there.remove("job-1")
    assert there.peak_blocks_with(NOTHING, idle_kv_weight=0.0) == 25


def test_a_new_job_brings_only_what_nobody_holds() -> None:
    """Its prefix is in the memory of the jobs that hold it, whether they are known to share it or
    not."""
    assert residents(sharing(12)).peak_blocks_with(sharing(14)) == 12 + 4
    assert residents(JobDemand(12, 1, 0)).peak_blocks_with(sharing(14)) == 12 + 4
