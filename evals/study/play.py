"""Plays one unit: the jobs of its regime under its policy, as one row."""

from __future__ import annotations

import importlib
import time
import traceback
from typing import Any

from ..outcomes import RunOutcome
from ..simulation.policies import parse_policy
from ..simulation.report import policy_entry
from ..summary import summarize
from .ideals import IDEALS, ideal_entry
from .jobs import JobStore
from .plan import StudyPlan
from .units import Unit, unit_key

_TRACEBACK_CHARS = 2000


def play_unit(plan: StudyPlan, store: JobStore, unit: Unit) -> dict[str, Any]:
    """The row, with what went wrong under `error`, None if nothing did."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        _import_vllm()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        found = {**_simulate(plan, store, unit), "error": None}
    except Exception as error:  # one unit that fails must not end hours of others
        told = traceback.format_exc()[-_TRACEBACK_CHARS:]
        found = {"error": f"{type(error).__name__}: {error}", "traceback": told}
    taken = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
    return make_row(plan, unit, found | taken)


def make_row(plan: StudyPlan, unit: Unit, found: dict[str, Any]) -> dict[str, Any]:
    """What was found, with everything there is to know of where it comes from."""
    return {
        "unit": unit_key(unit, plan.config),
        **unit.facts(),
        "one_x": plan.capacities[unit.tools, unit.pool_blocks].as_dict(),
        **found,
        **plan.metadata,
        "config": dict(plan.config),
    }


def _import_vllm() -> None:
    """Takes seconds, once in a process: not before something is simulated, nor in its time."""
    importlib.import_module("agentkv.evals.simulation.real_scheduler")


def _simulate(plan: StudyPlan, store: JobStore, unit: Unit) -> dict[str, Any]:
    from ..simulation.run import RunOptions, Simulation

    machine = plan.machines[unit.pool_blocks]
    workload, alone_s = store.workload(unit, machine)
    if unit.policy in IDEALS:
        return ideal_entry(unit.policy, workload, machine, alone_s)
    policy = parse_policy(unit.policy)
    options = RunOptions(dram_gib=plan.dram_gib)
    result = Simulation(workload, machine, policy, options, alone_s=alone_s).run()
    described = {"jps": unit.jps, "concurrency": unit.load.concurrency}
    run = RunOutcome(policy.name, described, result.jobs, result.counters)
    return {**policy_entry(summarize(run), result.counters), "counters": result.counters}
