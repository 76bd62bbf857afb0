"""The fleets of the study: engines, loads, routers and policies, and the order they are played in.

Jobs and load are per engine, so that a fleet of any size has the same to do for each of its
engines. Knows nothing of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.machine import Failure, Limits, Machine, make_machine
from agentkv.evals.simulator.routers import ROUTERS
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import summarize
from agentkv.evals.workload.plans import Workload
from agentkv.evals.workload.workloads import make_workload
from agentkv.policies.names import simulated_policy

from ..units import Row

WORKLOAD, POOL_BLOCKS = "swebench", 3400
"""11 turns, tools of a second, in the `short` pool of studies/tournament."""
JOBS = 16
"""For each engine."""
LOADS = (0.3, 0.6)
"""Jobs a second for each engine."""
SIZES = (1, 2, 4, 8, 16)
POLICIES = ("fcfs", "agentkv")
FAILING_SIZE, FAILS_S, RECOVERS_S = 4, 30.0, 60.0
"""Engine 0 of that many fails at the one time and is back, empty, at the other."""
PARTS = ("sizes", "failure")
STICKY_SPILL = "sticky-spill"


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation."""

    engines: int
    load: float
    has_failure: bool
    seed: int
    policy: str
    router: str

    def facts(self) -> Row:
        """All that decides the unit's result, except the code."""
        fixed = {"workload": WORKLOAD, "pool_blocks": POOL_BLOCKS, "jobs_per_engine": JOBS}
        return {**asdict(self), **fixed}

    @property
    def key(self) -> str:
        text = json.dumps(self.facts(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        failure = ", one fails" if self.has_failure else ""
        place = f"{self.engines} engines at {self.load:g}{failure}"
        return f"{place}, seed {self.seed}, {self.policy} behind {self.router}"


def units(parts: Sequence[str], sizes: Sequence[int], seeds: Sequence[int]) -> Iterator[Unit]:
    """Seed by seed, all routers of a fleet together, so that what is cut short has whole fleets."""
    places = [(size, load, False) for size in sizes if "sizes" in parts for load in LOADS]
    places += [(FAILING_SIZE, load, True) for load in LOADS if "failure" in parts]
    for seed in seeds:
        for engines, load, has_failure in sorted(places):
            for policy in POLICIES:
                # with one engine every router does the same
                for router in ROUTERS if engines > 1 else (STICKY_SPILL,):
                    yield Unit(engines, load, has_failure, seed, policy, router)


@lru_cache(maxsize=4)
def _played(engines: int, load: float, seed: int) -> tuple[Workload, Machine]:
    workload = make_workload(WORKLOAD, seed=seed, num_jobs=JOBS * engines, jps=load * engines)
    return workload, make_machine("h100", None, Limits(num_blocks=POOL_BLOCKS))


def simulate(unit: Unit) -> Row:
    """Figures of the unit's jobs, to four digits."""
    from agentkv.evals.simulator.run import RunOptions, Simulation

    workload, machine = _played(unit.engines, unit.load, unit.seed)
    failures = (Failure(0, FAILS_S, RECOVERS_S),) if unit.has_failure else ()
    options = RunOptions(num_engines=unit.engines, router=unit.router, failures=failures)
    result = Simulation(workload, machine, simulated_policy(unit.policy), options).run()
    run = RunOutcome(unit.policy, {}, result.jobs, result.counters)
    entry = policy_entry(summarize(run), result.counters)
    entry |= {"virtual_s": result.counters["virtual_s"], "steps": result.counters["steps"]}
    return {name: _short(value) for name, value in entry.items()}


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
