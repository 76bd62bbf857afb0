"""Facts about policies set side by side."""

from __future__ import annotations

import pytest

from agentkv.evals.commands.compare import table
from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.summary import compare
from tests.evals.made_runs import job, run, turn


def taking(policy: str, repeat: int, duration_s: float) -> RunOutcome:
    return run(job(ended_s=duration_s), policy=policy, metadata={"repeat": repeat})


RUNS = [
    taking("fcfs", 0, 10.0),
    taking("continuum", 0, 5.0),
    taking("fcfs", 1, 20.0),
    taking("continuum", 1, 16.0),
]


def test_ratios_are_taken_within_a_repeat() -> None:
    """Mean of 0.5 and 0.8, not the ratio of the means."""
    _, continuum = compare(RUNS, "fcfs")
    ratio = continuum.ratios["mean_s"]
    assert ratio is not None
    assert (ratio.mean, ratio.least, ratio.most) == pytest.approx((0.65, 0.5, 0.8))


def test_the_spread_is_over_repeats() -> None:
    """Mean and deviation; one repeat has no deviation."""
    fcfs, _ = compare(RUNS, "fcfs")
    values = fcfs.values["mean_s"]
    assert values is not None
    assert (values.mean, values.least, values.most) == (15.0, 10.0, 20.0)
    assert values.deviation == pytest.approx(7.071, abs=0.001)
    (alone,) = compare(RUNS[:1], "fcfs")
    assert alone.values["mean_s"] is not None
    assert alone.values["mean_s"].deviation is None


def test_a_repeat_without_its_baseline_has_no_ratio() -> None:
    """A comparison that broke off is shown as far as it went."""
    (continuum,) = compare([taking("continuum", 0, 5.0)], "fcfs")
    assert continuum.ratios["mean_s"] is None
    assert "continuum" in table([continuum], "fcfs")


def test_outputs_are_compared_up_to_the_first_difference() -> None:
    """What follows a different output has a different prompt and says nothing."""

    def with_outputs(policy: str, *digests: str) -> RunOutcome:
        turns = tuple(turn(n, output_digest=digest) for n, digest in enumerate(digests))
        return run(job(turns=turns), policy=policy)

    runs = [with_outputs("fcfs", "a", "b", "c"), with_outputs("continuum", "a", "x", "y")]
    _, continuum = compare(runs, "fcfs")
    assert (continuum.turns_compared, continuum.turns_differing) == (2, 1)
    assert "1 of 2 turns have the outputs of fcfs" in table(compare(runs, "fcfs"), "fcfs")


def test_the_table_has_a_line_a_policy() -> None:
    """With jobs done and the ratio's range."""
    text = table(compare(RUNS, "fcfs"), "fcfs")
    fcfs, continuum = (line for line in text.splitlines() if "/2" in line)
    assert fcfs.startswith("fcfs")
    assert "0.65 (0.50-0.80)" in continuum
