"""Each rule moves the simulator's numbers the way its authors say, on small made workloads."""

from __future__ import annotations

from statistics import fmean

import pytest

from agentkv.evals.simulator.run import SimulatedRun
from agentkv.evals.workload.plans import JobPlan, Workload
from tests.evals.simulator.simulated import job, machine, simulate

from .rules import NAMES


def run_of(jobs: list[JobPlan], rule: str, settings: str = "", **limits: int) -> SimulatedRun:
    workload = Workload("made", 0, tuple(jobs), None)
    name = NAMES.get(rule, rule) + settings
    return simulate(workload, name, machine(**limits))[1]


def mean_s(run: SimulatedRun) -> float:
    return fmean(outcome.duration_s for outcome in run.jobs)


def hits(run: SimulatedRun) -> int:
    return sum(turn.cached_tokens for outcome in run.jobs for turn in outcome.turns)


def queue_of(sizes: list[int], turns: int = 4) -> list[JobPlan]:
    """Jobs that arrive almost at once, with that many output tokens a turn and no tools to speak
    of."""
    return [
        job(f"job-{number}", number * 0.001, *[(50, size, 0.01)] * turns)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("sizes", "is_better"),
    [([400, 400, 10, 10, 10, 10, 10, 10], True), ([100] * 8, False)],
    ids=["heavy-tailed", "alike"],
)
def test_least_attained_service_gains_where_jobs_differ_and_loses_where_not(
    sizes: list[int], is_better: bool
) -> None:
    """Against order of the jobs' arrival: short jobs overtake long ones; equal ones share and all
    end late."""
    levels = '{"levels_s":[0.2,0.5,1.0,2.0,4.0,8.0]}'
    served = {"num_blocks": 400, "max_num_seqs": 2}
    by_arrival = mean_s(run_of(queue_of(sizes), "InferCept", **served))
    least_served = mean_s(run_of(queue_of(sizes), "Autellix", levels, **served))
    assert (least_served < by_arrival) is is_better


def test_deepest_first_ends_jobs_sooner_than_turns_as_they_arrive() -> None:
    """Turn priority finishes equal jobs one after the other, where stock lets all of them wait."""
    served = {"num_blocks": 400, "max_num_seqs": 2}
    stock, deepest = (
        run_of(queue_of([50] * 8), name, **served) for name in ("fcfs", "TurnPriority")
    )
    assert mean_s(deepest) < mean_s(stock)


def thrashing(num_jobs: int = 10) -> list[JobPlan]:
    """Jobs whose contexts together are five times the pool, with tools of 0.5 s."""
    turns = [(400, 20, 0.5)] + [(40, 20, 0.5)] * 7
    return [job(f"job-{number}", number * 0.05, *turns) for number in range(num_jobs)]


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("ThunderAgent", ""),
        ("ThunderAgent", '{"rules":"released"}'),
        ("Mori", ""),
        ("ProgressTTL", ""),
        ("Concur", '{"first_window":2}'),
    ],
)
def test_a_gate_keeps_contexts_in_a_cache_that_thrashes(rule: str, settings: str) -> None:
    """Under pressure more of the prompts is found in the cache than without the rule."""
    pool = {"num_blocks": 120}
    stock, gated = run_of(thrashing(), "fcfs", **pool), run_of(thrashing(), rule, settings, **pool)
    assert hits(gated) > hits(stock)


@pytest.mark.parametrize("rule", ["PinForever", "InferCept", "CacheWise", "QueueInformed"])
def test_held_contexts_are_found_again(rule: str) -> None:
    """Where half of the contexts fit, holding them raises hits or leaves them as they are."""
    pool = {"num_blocks": 300}
    stock, held = run_of(thrashing(), "fcfs", **pool), run_of(thrashing(), rule, **pool)
    assert hits(held) >= hits(stock)


@pytest.mark.parametrize("rule", NAMES)
def test_a_rule_is_stock_where_memory_is_ample(rule: str) -> None:
    """One job alone takes as long as on stock, but for the ticks that a paused job waits for."""
    alone = [job("job", 0.0, *[(100, 20, 0.2)] * 4)]
    stock, ruled = run_of(alone, "fcfs", num_blocks=400), run_of(alone, rule, num_blocks=400)
    assert mean_s(ruled) == pytest.approx(mean_s(stock), rel=1e-6)
