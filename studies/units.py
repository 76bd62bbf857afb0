"""Plays the units of a study, each as one row of a file, in processes of their own.

A process that dies, or takes too long over a unit, costs that unit alone. Knows nothing of what a
unit is; each study says how one is simulated, and makes its tables from the rows.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, as_completed
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

from agentkv.errors import AgentKVError, InputError
from agentkv.evals.options import BAD_USAGE, DONE, FAILED, seconds, whole_number
from agentkv.evals.progress import progress
from agentkv.evals.rows import RowFile, provenance, read_rows

Row = dict[str, Any]
UnitT = TypeVar("UnitT")
Simulate = Callable[[UnitT], Row]
MakeRow = Callable[[UnitT, Row], Row]
_TRACEBACK_CHARS = 2000


class StudyUnit(Protocol):
    """A unit by all that decides its result, except the code."""

    @property
    def key(self) -> str:
        """Names its row; two units of a study with one key are the same."""
        ...

    def facts(self) -> Row: ...


StudyUnitT = TypeVar("StudyUnitT", bound=StudyUnit)


def exit_status(program: str, run: Callable[[], int]) -> int:
    """Run a study; an error that a user can mend is one line on standard error."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    try:
        return run()
    except (AgentKVError, OSError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return BAD_USAGE


def play_missing(
    units: Iterable[StudyUnitT],
    simulate: Simulate[StudyUnitT],
    path: Path,
    options: argparse.Namespace,
    *,
    program: str,
) -> Row:
    """Play the units that have no good row in the file; returns how the run went.

    Raises InputError without vLLM, and where rows are there and the flags do not say what to do.
    """
    if importlib.util.find_spec("vllm") is None:
        raise InputError("the package 'vllm' is missing: run `pip install '.[vllm,bench]'`")
    todo = list(units)
    if options.force:
        path.unlink(missing_ok=True)
    elif path.exists():
        if not options.resume:
            raise InputError(f"{path.parent} has rows: --resume it, --force, or another --out")
        done = {row["unit"] for row in last_rows(path, ("error",)) if row["error"] is None}
        todo = [unit for unit in todo if unit.key not in done]
    played = play_units(todo, simulate, partial(make_row, provenance()["commit"]), options)
    return write_rows(path, played, len(todo), program=program)


def make_row(commit: str | None, unit: StudyUnit, found: Row) -> Row:
    """What was found, with all that is known of its origin."""
    return {"unit": unit.key, **unit.facts(), **found, "commit": commit}


def print_result(rows: Sequence[Row], run: Row, **found: Any) -> int:
    """Print one JSON document: what was found in the rows, and how the run went."""
    failed = sum(row["error"] is not None for row in rows)
    document = {"units": len(rows), **found, **run, "failed_units": failed}
    print(json.dumps(document), flush=True)
    return FAILED if failed or run.get("ended_early") else DONE


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Flags of every study that is played unit by unit."""
    group = parser.add_argument_group("run")
    either = group.add_mutually_exclusive_group().add_argument
    either("--resume", action="store_true", help="go on with the study in --out")
    either("--force", action="store_true", help="delete the study in --out first")
    add = group.add_argument
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = whole_number(1)
    add("--workers", type=count, default=cores or 1, metavar="N", help="default: one a core")
    add("--unit-limit-s", type=seconds, default=1800.0, metavar="S", help="default %(default)g")


def play_units(
    units: Sequence[UnitT],
    simulate: Simulate[UnitT],
    make_row: MakeRow[UnitT],
    options: argparse.Namespace,
) -> Generator[tuple[UnitT, Row]]:
    """Each unit with its row, as they end; a single worker is this process, without a limit.

    `make_row` adds to what was found all that is known of the unit. A failure stands under `error`,
    None if there was none. Both functions are sent to other processes.
    """
    num_workers = min(options.workers, len(units)) or 1
    if num_workers == 1:
        yield from ((unit, make_row(unit, _attempt(unit, simulate))) for unit in units)
        return
    # A forked copy of a process in which torch has run may hang.
    spawn = multiprocessing.get_context("spawn")
    limit_s: float = options.unit_limit_s
    pool: Any = ProcessPool(num_workers, context=spawn)
    try:
        futures: dict[Future[Row], UnitT] = {
            pool.schedule(_attempt, [unit, simulate], timeout=limit_s): unit for unit in units
        }
        for future in as_completed(futures):
            try:
                found = future.result()
            except TimeoutError:
                error = f"took longer than --unit-limit-s {limit_s:g}"
                found = {"error": error, "wall_s": limit_s, "cpu_s": None}
            except ProcessExpired as ended:
                error = f"process ended with {ended.exitcode}"
                found = {"error": error, "wall_s": None, "cpu_s": None}
            unit = futures[future]
            yield unit, make_row(unit, found)
    finally:
        pool.stop()
        pool.join()


def _attempt(unit: UnitT, simulate: Simulate[UnitT]) -> Row:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    try:
        # vLLM takes seconds to import, once in a process: not counted as the unit's.
        importlib.import_module("agentkv.evals.simulator.run")
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        found = {**simulate(unit), "error": None}
    except Exception as error:  # one unit that fails must not end hours of others
        trace = traceback.format_exc()[-_TRACEBACK_CHARS:]
        found = {"error": f"{type(error).__name__}: {error}", "traceback": trace}
    taken = {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
    return found | taken


def write_rows(
    path: Path, played: Generator[tuple[UnitT, Row]], num_units: int, *, program: str
) -> dict[str, Any]:
    """Append rows as units end, also if that ends early; returns how the run went."""
    started_s, num_jobs, reason = time.monotonic(), 0, None
    try:
        with RowFile(path, append=True) as file, progress("units", num_units, every_s=0) as show:
            for number, (unit, row) in enumerate(played, start=1):
                file.add(row)
                num_jobs += row.get("jobs", 0)
                show(number, f"{number}/{num_units} {unit}: {_describe(row)}")
    except (KeyboardInterrupt, OSError) as error:
        reason = str(error) or "interrupted"
        print(f"{program}: ended early: {reason}", file=sys.stderr)
    finally:
        played.close()
    wall_s = time.monotonic() - started_s
    return {
        "ended_early": reason,
        "units_asked": num_units,
        "wall_s": round(wall_s, 3),
        "jobs_per_s": num_jobs / wall_s,
    }


def last_rows(path: Path, needed: Iterable[str]) -> list[Row]:
    """The last row of each unit, in the order of their first.

    Raises InputError where there is no file of rows, or one with a row of another kind.
    """
    if not path.is_file():
        raise InputError(f"{path.parent}: no {path.name} in it")
    return list({row["unit"]: row for row in read_rows(path, ("unit", *needed))}.values())


def _describe(row: Row) -> str:
    if row["error"] is not None:
        return f"failed: {row['error']}"
    done = f"{row['completed']} of {row['jobs']} jobs, " if row["completed"] < row["jobs"] else ""
    mean_s = "-" if row["mean_s"] is None else f"{row['mean_s']:.1f} s"
    return f"{done}mean {mean_s} ({row['wall_s']:.1f} s)"
