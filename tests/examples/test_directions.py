"""Each rule moves the simulator's numbers the way its authors say, on small made workloads."""

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


LEVELS = '{"levels_s":[0.2,0.5,1.0,2.0,4.0,8.0]}'


@pytest.mark.parametrize(
    ("sizes", "rule", "settings", "is_better"),
    [
        ([400, 400, 10, 10, 10, 10, 10, 10], "Autellix", LEVELS, True),
        ([100] * 8, "Autellix", LEVELS, False),
        ([50] * 8, "TurnPriority", "", True),
    ],
)
def test_an_order_gains_where_its_jobs_are_and_loses_elsewhere(
    sizes: list[int], rule: str, settings: str, is_better: bool
) -> None:
    """Short jobs overtake long ones, where equal ones share and all end late; deepest first ends
    equal jobs one after the other. Jobs have 4 turns of that many output tokens."""
    jobs = [job(f"job-{n}", n * 0.001, *[(50, size, 0.01)] * 4) for n, size in enumerate(sizes)]
    served = {"num_blocks": 400, "max_num_seqs": 2}
    base = "InferCept" if rule == "Autellix" else "fcfs"
    runs = run_of(jobs, rule, settings, **served), run_of(jobs, base, **served)
    assert (mean_s(runs[0]) < mean_s(runs[1])) is is_better


@pytest.mark.parametrize(
    ("rule", "settings", "num_blocks"),
    [
        *(("ThunderAgent", "", 120), ("ThunderAgent", '{"rules":"released"}', 120)),
        *(("Mori", "", 120), ("ProgressTTL", "", 120), ("Concur", '{"first_window":2}', 120)),
        *((rule, "", 300) for rule in ("PinForever", "InferCept", "CacheWise", "QueueInformed")),
    ],
)
def test_contexts_stay_in_a_cache_that_thrashes(rule: str, settings: str, num_blocks: int) -> None:
    """Contexts of five times the pool, or of twice: as much or more of the prompts is found."""
    turns = [(400, 20, 0.5)] + [(40, 20, 0.5)] * 7
    jobs = [job(f"job-{number}", number * 0.05, *turns) for number in range(10)]
    ruled, stock = (
        sum(turn.cached_tokens for outcome in run.jobs for turn in outcome.turns)
        for run in (
            run_of(jobs, rule, settings, num_blocks=num_blocks),
            run_of(jobs, "fcfs", num_blocks=num_blocks),
        )
    )
    assert ruled > stock or (num_blocks == 300 and ruled == stock)


@pytest.mark.parametrize("rule", NAMES)
def test_a_rule_is_stock_where_memory_is_ample(rule: str) -> None:
    """One job alone takes as long as on stock, but for the ticks that a paused job waits for."""
    alone = [job("job", 0.0, *[(100, 20, 0.2)] * 4)]
    stock, ruled = run_of(alone, "fcfs", num_blocks=400), run_of(alone, rule, num_blocks=400)
    assert mean_s(ruled) == pytest.approx(mean_s(stock), rel=1e-6)
