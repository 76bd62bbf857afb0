"""Plays units, each as one row, in processes of their own.

A process that dies, or takes too long over a unit, costs that unit alone.
"""

from __future__ import annotations

import importlib
import multiprocessing
import time
import traceback
from collections.abc import Generator, Sequence
from concurrent.futures import Future, as_completed
from typing import Any

from pebble import ProcessExpired, ProcessPool

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import summarize

from .grid import StudyPlan, Unit
from .ideals import ideal_entry
from .policies import parse_grid_policy

Row = dict[str, Any]
_TRACEBACK_CHARS = 2000


def play_all(
    plan: StudyPlan, units: Sequence[Unit], *, num_workers: int, unit_limit_s: float
) -> Generator[tuple[Unit, Row]]:
    """Each unit with its row, as they end; a single worker is this process, without a limit."""
    if num_workers == 1:
        yield from ((unit, play_unit(plan, unit)) for unit in units)
        return
    # A forked copy of a process in which torch has run may hang.
    spawn = multiprocessing.get_context("spawn")
    pool: Any = ProcessPool(num_workers, context=spawn)
    try:
        futures: dict[Future[Row], Unit] = {
            pool.schedule(play_unit, [plan, unit], timeout=unit_limit_s): unit for unit in units
        }
        for future in as_completed(futures):
            unit = futures[future]
            try:
                row = future.result()
            except TimeoutError:
                error = f"took longer than --unit-limit-s {unit_limit_s:g}"
                row = make_row(plan, unit, {"error": error, "wall_s": unit_limit_s, "cpu_s": None})
            except ProcessExpired as ended:
                error = f"process ended with {ended.exitcode}"
                row = make_row(plan, unit, {"error": error, "wall_s": None, "cpu_s": None})
            yield unit, row
    finally:
        pool.stop()
        pool.join()


def play_unit(plan: StudyPlan, unit: Unit) -> Row:
    """The row of a unit, with its failure under `error`, None if there was none."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        # vLLM takes seconds to import, once in a process: not counted as the unit's.
        importlib.import_module("agentkv.evals.simulator.run")
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        found = {**_simulate(plan, unit), "error": None}
    except Exception as error:  # one unit that fails must not end hours of others
        trace = traceback.format_exc()[-_TRACEBACK_CHARS:]
        found = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
    taken = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
    return make_row(plan, unit, found | taken)


def make_row(plan: StudyPlan, unit: Unit, found: dict[str, Any]) -> Row:
    """What was found, with all that is known of its origin."""
    return {
        "unit": unit.key(plan.config),
        **unit.facts(),
        "one_x": plan.capacities[unit.tools, unit.pool_blocks].as_dict(),
        **found,
        **plan.metadata,
        "config": dict(plan.config),
    }


def _simulate(plan: StudyPlan, unit: Unit) -> Row:
    from agentkv.evals.simulator.run import RunOptions, Simulation

    policy = parse_grid_policy(unit.policy)
    workload, alone_s = plan.workload(unit)
    machine, dram_gib = policy.tier(plan.machines[unit.pool_blocks], plan.dram_gib)
    if policy.choice is None:
        return ideal_entry(unit.policy, workload, machine, alone_s)
    options = RunOptions(dram_gib=dram_gib, policy_class=policy.policy_class())
    result = Simulation(workload, machine, policy.choice, options, alone_s=alone_s).run()
    described = {"jps": unit.jps, "concurrency": unit.load.concurrency}
    run = RunOutcome(policy.name, described, result.jobs, result.counters)
    return {**policy_entry(summarize(run), result.counters), "counters": result.counters}
