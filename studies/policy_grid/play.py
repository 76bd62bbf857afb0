"""Plays one unit: the jobs of its regime under its policy, as one row."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from agentkv.evals.outcomes import RunOutcome
from agentkv.evals.simulator.simulate import policy_entry
from agentkv.evals.summary import summarize

from .grid import JobStore, StudyPlan, Unit, unit_key
from .ideals import (
    ENDLESS_GIB,
    IDEALS,
    LOSSLESS_SUFFIX,
    NO_TIME_BYTES_S,
    ideal_entry,
    parse_grid_policy,
)

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
    importlib.import_module("agentkv.testing.vllm_scheduler")


def _simulate(plan: StudyPlan, store: JobStore, unit: Unit) -> dict[str, Any]:
    from agentkv.evals.simulator.run import RunOptions, Simulation

    machine = plan.machines[unit.pool_blocks]
    workload, alone_s = store.workload(unit, machine)
    if unit.policy in IDEALS:
        return ideal_entry(unit.policy, workload, machine, alone_s)
    policy = parse_grid_policy(unit.policy)
    options = RunOptions(dram_gib=plan.dram_gib)
    if unit.policy.endswith(LOSSLESS_SUFFIX):
        machine = replace(machine, pcie_bytes_s=NO_TIME_BYTES_S)
        options = RunOptions(dram_gib=ENDLESS_GIB)
    result = Simulation(workload, machine, policy, options, alone_s=alone_s).run()
    described = {"jps": unit.jps, "concurrency": unit.load.concurrency}
    run = RunOutcome(policy.name, described, result.jobs, result.counters)
    return {**policy_entry(summarize(run), result.counters), "counters": result.counters}


Row = dict[str, Any]
# A forked copy of a process in which torch has run may hang.
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    unit: Unit
    given_s: float

    def give(self, unit: Unit) -> None:
        self.unit, self.given_s = unit, time.monotonic()
        # one that has died meanwhile is found so when its row is asked for
        with suppress(OSError):
            self.connection.send(unit)


def play_all(
    plan: StudyPlan, units: Sequence[Unit], *, num_workers: int, unit_limit_s: float
) -> Generator[tuple[Unit, Row]]:
    """Each unit with its row, as they end; one worker is this process, and has no limit."""
    if num_workers == 1:
        store = JobStore(plan.source)
        yield from ((unit, play_unit(plan, store, unit)) for unit in units)
        return
    todo = deque(units)
    busy: list[_Worker] = []
    try:
        while todo or busy:
            while todo and len(busy) < num_workers:
                busy.append(_start(plan, todo.popleft()))
            wait([worker.connection for worker in busy], timeout=_left_s(busy, unit_limit_s))
            for worker in list(busy):
                row = _row_of(plan, worker, unit_limit_s)
                if row is None:
                    continue
                unit = worker.unit
                if worker.process.is_alive() and todo:
                    worker.give(todo.popleft())
                else:
                    busy.remove(worker)
                    _end(worker)
                yield unit, row
    finally:
        for worker in busy:
            _end(worker)


def _start(plan: StudyPlan, unit: Unit) -> _Worker:
    connection, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(plan, theirs), daemon=True)
    process.start()
    theirs.close()
    worker = _Worker(process, connection, unit, time.monotonic())
    worker.give(unit)
    return worker


def _serve(plan: StudyPlan, connection: Connection) -> None:
    """A worker's whole life; Ctrl-C is the parent's business, and without one it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    store = JobStore(plan.source)
    with suppress(EOFError, OSError):
        while True:
            connection.send(play_unit(plan, store, connection.recv()))


def _row_of(plan: StudyPlan, worker: _Worker, limit_s: float) -> Row | None:
    """What a worker has come to; None while it is at work."""
    if worker.connection.poll():
        try:
            row: Row = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            return _failed(plan, worker, f"process ended with {worker.process.exitcode}")
        return row
    if time.monotonic() - worker.given_s > limit_s:
        worker.process.kill()
        worker.process.join()
        return _failed(plan, worker, f"took longer than --unit-limit-s {limit_s:g}")
    return None


def _failed(plan: StudyPlan, worker: _Worker, error: str) -> Row:
    wall_s = time.monotonic() - worker.given_s
    return make_row(plan, worker.unit, {"error": error, "wall_s": wall_s, "cpu_s": None})


def _left_s(busy: Sequence[_Worker], limit_s: float) -> float:
    """Until the first of them has had its time; a bit more, so that it is then over."""
    oldest_s = min(worker.given_s for worker in busy)
    return max(0.0, oldest_s + limit_s - time.monotonic()) + 0.05


def _end(worker: _Worker) -> None:
    worker.connection.close()
    worker.process.kill()
    worker.process.join()
