"""Facts about the numbers of one run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkv.evals.summary import quantile, summarize
from tests.evals.made_runs import job, run, turn

REFERENCE_KEYS = {
    "policy",
    "jps",
    "avg_duration_s",
    "p90_duration_s",
    "p95_duration_s",
    "per_turn_avg_latency_ms",
    "per_turn_avg_prompt_tokens",
    "job_durations",
}


def test_the_references_keys_are_there() -> None:
    """The eight names of its result files, also for a run without jobs."""
    assert summarize(run()).keys() >= REFERENCE_KEYS
    assert summarize(run(job())).keys() == summarize(run()).keys()


def test_jobs_that_arrived_are_done_failed_or_cut() -> None:
    """Nothing is lost."""
    jobs = [job("a"), job("b", status="failed"), job("c", status="cut"), job("d")]
    found = summarize(run(*jobs))
    assert found["jobs"] == found["completed"] + found["failed"] + found["cut"] == 4


def test_durations_are_of_done_jobs_only() -> None:
    """A failed job is short and would flatter the mean."""
    found = summarize(run(job("a"), job("b", status="failed", ended_s=0.1)))
    assert found["job_durations"] == [2.5]
    assert found["mean_s"] == found["max_s"] == found["avg_duration_s"] == 2.5


def test_the_parts_of_the_mean_job_add_up() -> None:
    """First tokens, decoding, tools and the rest make the mean duration."""
    found = summarize(run(job("a"), job("b", num_turns=3)))
    parts = [found[f"mean_{part}_s"] for part in ("to_first_token", "decode", "tools", "other")]
    assert sum(parts) == pytest.approx(found["mean_s"], abs=1e-9)
    assert found["mean_other_s"] == pytest.approx(0.0, abs=1e-9)


def test_hit_rate_is_of_turns_that_continue() -> None:
    """Cached over prompt tokens from the second turn on; unknown if the server does not tell."""
    assert summarize(run(job()))["hit_rate"] == 96 / 200
    silent = run(job(), metadata={"reports_cached_tokens": False})
    assert summarize(silent)["hit_rate"] is None


def test_recomputed_tokens_are_those_an_earlier_turn_had() -> None:
    """Prompt and output of the turn before, less what was cached; or the server's own count."""
    assert summarize(run(job()))["recomputed_tokens"] == 100 + 10 - 96
    assert summarize(run(job(), server={"recomputed_tokens": 5}))["recomputed_tokens"] == 5


def test_turns_that_failed_count_no_latency() -> None:
    """Their error is counted with the job, not in the times."""
    failed = job("b", status="failed", turns=(turn(ended_s=60.0, error="HTTP 500"),))
    assert summarize(run(job("a"), failed))["per_turn_avg_latency_ms"] == [1000.0, 1000.0]


def test_slowdowns_need_every_jobs_time_alone() -> None:
    """Duration over that time; None if one job's is not known."""
    known = run(job("a", alone_s=1.25), job("b", alone_s=2.5))
    assert summarize(known)["slowdown_max"] == 2.0
    assert summarize(run(job("a", alone_s=1.25), job("b")))["slowdown_max"] is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0.0, 1.0))
def test_a_quantile_lies_within_the_values(values: list[float], share: float) -> None:
    """Between the smallest and the largest, which are its own ends."""
    assert min(values) <= (quantile(values, share) or 0.0) + 1e-6
    assert (quantile(values, share) or 0.0) - 1e-6 <= max(values)
    assert quantile(values, 0.0) == min(values)
    assert quantile(values, 1.0) == max(values)
