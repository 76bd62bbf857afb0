"""The numbers of one run, and of policies set side by side."""

from typing import Any

import pytest

from agentkv.evals.commands.bench import report
from agentkv.evals.comparison import Spread, compare, table
from agentkv.evals.outcomes import RunOutcome, summarize
from tests.evals.made_runs import job, run, turn

REFERENCE_KEYS = {
    *("policy", "jps", "avg_duration_s", "p90_duration_s", "p95_duration_s", "job_durations"),
    *("per_turn_avg_latency_ms", "per_turn_avg_prompt_tokens"),
}


def test_a_summary_has_all_its_names_and_loses_no_job() -> None:
    """The reference's names exist even without jobs, and only done jobs count in durations."""
    assert summarize(run()).keys() >= REFERENCE_KEYS
    assert summarize(run(job())).keys() == summarize(run()).keys()
    jobs = [job("a"), job("b", status="failed", ended_s=0.1), job("c", status="cut")]
    found = summarize(run(*jobs))
    assert [found[name] for name in ("jobs", "completed", "failed", "cut")] == [3, 1, 1, 1]
    assert found["job_durations"] == [2.5]
    assert found["mean_s"] == found["max_s"] == found["avg_duration_s"] == 2.5


SILENT = run(job(), metadata={"reports_cached_tokens": False})
FAILED = job("b", status="failed", turns=(turn(ended_s=60.0, error="HTTP 500"),))


@pytest.mark.parametrize(
    ("made", "name", "expected"),
    [
        (run(job()), "hit_rate", 96 / 200),
        (SILENT, "hit_rate", None),
        (run(job()), "recomputed_tokens", 100 + 10 - 96),
        (run(job(), server={"recomputed_tokens": 5}), "recomputed_tokens", 5),
        (run(job("a"), FAILED), "per_turn_avg_latency_ms", [1000.0, 1000.0]),
        (run(job("a", alone_s=1.25), job("b", alone_s=2.5)), "slowdown_max", 2.0),
        (run(job("a", alone_s=1.25), job("b")), "slowdown_max", None),
    ],
)
def test_a_number_counts_what_was_measured(made: RunOutcome, name: str, expected: Any) -> None:
    """Hits are of continuing turns, failed turns have no latency, and the unknown is None."""
    assert summarize(made)[name] == expected


def taking(policy: str, repeat: int, duration_s: float) -> RunOutcome:
    return run(job(ended_s=duration_s), policy=policy, metadata={"repeat": repeat})


RUNS = [
    taking("fcfs", 0, 10.0),
    taking("continuum", 0, 5.0),
    taking("fcfs", 1, 20.0),
    taking("continuum", 1, 16.0),
]


def test_spreads_are_over_repeats_and_ratios_within_one() -> None:
    """A ratio is the mean of 0.5 and 0.8, not the ratio of means; one repeat has no deviation."""
    fcfs, continuum = compare(RUNS, "fcfs")
    values, ratio = fcfs.values["mean_s"], continuum.ratios["mean_s"]
    assert values is not None
    assert ratio is not None
    assert (values.mean, values.least, values.most) == (15.0, 10.0, 20.0)
    assert values.deviation == pytest.approx(7.071, abs=0.001)
    assert (ratio.mean, ratio.least, ratio.most) == pytest.approx((0.65, 0.5, 0.8))
    (alone,) = compare(RUNS[:1], "fcfs")
    assert alone.values["mean_s"] == Spread(10.0, None, 10.0, 10.0)
    line = next(line for line in table([fcfs, continuum], "fcfs").splitlines() if "0.65" in line)
    assert line.startswith("continuum")
    assert "0.65 (0.50-0.80)" in line


def test_outputs_are_compared_up_to_the_first_difference() -> None:
    """Turns behind a different output have different prompts and are not compared."""

    def with_outputs(policy: str, *digests: str) -> RunOutcome:
        turns = tuple(turn(n, output_digest=digest) for n, digest in enumerate(digests))
        return run(job(turns=turns), policy=policy)

    runs = [with_outputs("fcfs", "a", "b", "c"), with_outputs("continuum", "a", "x", "y")]
    _, continuum = compare(runs, "fcfs")
    assert (continuum.turns_compared, continuum.turns_differing) == (2, 1)
    assert "1 of 2 turns have the outputs of fcfs" in report(runs, compare(runs, "fcfs"), "fcfs")
