"""The jobs that a workload's name and seed make, and when they arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentkv.errors import InputError
from agentkv.evals.workload.kinds import OUTPUT_TOKENS
from agentkv.evals.workload.plans import (
    BURST_JOBS,
    Workload,
    arrival_times_s,
    with_children,
)
from agentkv.evals.workload.workloads import WORKLOADS, make_workload

SYNTHETIC = tuple(name for name in WORKLOADS if name != "trace")


def make(name: str = "reference", **options: Any) -> Workload:
    load = {"concurrency": 4} if name.endswith("rollouts") else {"jps": 2.0}
    return make_workload(name, **({"num_jobs": 20, "seed": 0} | load | options))


def test_the_reference_job_has_the_references_prompts() -> None:
    """The reference job has eight turns of 92 to 2,915 tokens and tools within its ranges."""
    for job in make("reference").jobs:
        prompts = [job.prompt_tokens(turn) for turn in range(len(job.turns))]
        assert prompts == [92, 469, 811, 1343, 1655, 2241, 2665, 2915]
        assert 2.0 <= job.turns[4].tool_s <= 5.0
        assert all(0.05 <= job.turns[turn].tool_s <= 0.3 for turn in (0, 1, 2, 3, 5, 6))


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_job_depends_on_seed_and_number_alone(name: str) -> None:
    """The first 5 of 20 jobs are the 5 of 5, and only after a last turn nothing follows."""
    assert make(name, num_jobs=5).jobs == make(name).jobs[:5]
    assert make(name, seed=1).jobs != make(name).jobs
    jobs = list(with_children(make(name).jobs))
    assert len({job.job_id for job in jobs}) == len(jobs)
    for job in jobs:
        *others, last = job.turns
        assert last == last.as_last()
        for turn in others:
            follows = turn.children or turn.tool_s > 0.0
            assert turn.pause_s > 0.0 and not turn.command if job.role == "chat" else follows


@pytest.mark.parametrize(
    ("name", "turns", "tools_s"),
    [("swebench", (10.9, 2.1), (0.925, 3.55)), ("bfcl", (6.3, 2.3), (1.923, 2.133))],
)
def test_synthetic_jobs_have_the_published_figures(
    name: str, turns: tuple[float, float], tools_s: tuple[float, float]
) -> None:
    """Mean and deviation of turns and tool times over 2,000 jobs are near the paper's."""
    jobs = make(name, num_jobs=2000).jobs
    num_turns = np.array([len(job.turns) for job in jobs])
    times_s = np.array([turn.tool_s for job in jobs for turn in job.turns[:-1]])
    assert (num_turns.mean(), num_turns.std()) == pytest.approx(turns, rel=0.1)
    assert times_s.mean() == pytest.approx(tools_s[0], rel=0.15)
    assert times_s.std() == pytest.approx(tools_s[1], rel=0.5)


def test_a_job_is_cut_by_turns_and_by_tokens() -> None:
    """A job ends within both limits, and its last turn then has no tool."""
    by_turns = make("swebench", max_turns=3).jobs
    assert {len(job.turns) for job in by_turns} == {3}
    assert all(job.turns[-1].command == "" for job in by_turns)
    by_tokens = make("reference", max_context_tokens=1500).jobs
    assert {job.context_tokens for job in by_tokens} == {1343 + OUTPUT_TOKENS[3]}


def test_the_jobs_of_a_closed_loop_arrive_at_once() -> None:
    """All of them are due at 0: one starts as another ends."""
    workload = make(jps=None, concurrency=4)
    assert workload.concurrency == 4
    assert {job.arrival_s for job in workload.jobs} == {0.0}


def test_rates_scale_arrivals_and_token_scales_scale_tokens() -> None:
    """Twice the rate is the same pattern in half the time; half the tokens keep their seconds."""
    slow, fast = make(jps=1.0).jobs, make(jps=2.0).jobs
    assert [job.turns for job in slow] == [job.turns for job in fast]
    assert [job.arrival_s / 2 for job in slow] == pytest.approx([job.arrival_s for job in fast])
    whole, half = make().jobs[0], make(token_scale=0.5).jobs[0]
    assert half.context_tokens == pytest.approx(whole.context_tokens / 2, abs=8)
    assert [turn.tool_s for turn in half.turns] == [turn.tool_s for turn in whole.turns]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"jps": None}, "jps: got None"),
        ({"concurrency": 2}, "give one of them"),
        ({"max_context_tokens": 50}, "max_context_tokens"),
        ({"name": "rollouts", "concurrency": None}, "concurrency: rollouts starts in steps"),
        ({"name": "trace"}, "needs a file"),
        ({"trace": Path("x")}, "only the workload 'trace'"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], seen: str) -> None:
    """InputError tells the value seen and what is allowed."""
    with pytest.raises(InputError) as caught:
        make(**options)
    assert seen in str(caught.value)


def times(how: str) -> list[float]:
    return arrival_times_s(how, seed=3, jps=4.0, num_jobs=4000)


def test_bursts_come_together_at_the_same_rate() -> None:
    """Eight jobs arrive at one time, and the rate holds over all bursts."""
    found = times("burst")
    assert len(set(found[:BURST_JOBS])) == 1
    assert len(set(found)) == len(found) / BURST_JOBS
    assert len(found) / found[-1] == pytest.approx(4.0, rel=0.15)
