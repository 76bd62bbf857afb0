"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv.errors import AgentKVError

from ..options import (
    add_workload_options,
    describe_workload,
    fill_in,
    positive,
    share,
    whole_number,
    workload_of,
)
from ..outcomes import JobOutcome, RunOutcome
from ..rows import RUN_FILE, TURNS_FILE, RunWriter, provenance, row_facts
from ..summary import summarize
from ..workload.plans import Workload, WorkloadError
from . import catalog
from .machine import (
    DEFAULT_DRAM_GIB,
    Limits,
    Machine,
    SimulationError,
    StuckError,
    alone_s,
    make_machine,
)
from .policies import PolicyChoice, parse_policy

if TYPE_CHECKING:
    from .run import SimulatedRun, Simulation

DONE, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0: all jobs done; 1: some failed or were cut; 2: nothing could be simulated."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate

        return calibrate(argv[1:])
    try:
        plan, is_json_alone = read_plan(argv)
        runs, reason = _run_all(plan)
    except (AgentKVError, OSError) as error:
        print(f"agentkv simulate: {error}", file=sys.stderr)
        return BAD_USAGE
    except ModuleNotFoundError as error:
        print(
            f"agentkv simulate: the package {error.name!r} is missing: it runs vLLM's own "
            "scheduler; run `pip install 'agentkv-serving[vllm,bench]'`",
            file=sys.stderr,
        )
        return BAD_USAGE
    if reason is not None:
        print(f"agentkv simulate: ended early: {reason}", file=sys.stderr)
    result = _document(plan, runs, reason)
    if not is_json_alone:
        print(table(result["policies"]))
    print(json.dumps(result), flush=True)
    is_done = reason is None and all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if is_done else FAILED


def _run_all(plan: SimulationPlan) -> tuple[list[RunOutcome], str | None]:
    """The runs, and why they ended early if they did."""
    # vLLM takes seconds to import: not before the flags are known to be good
    pass
    from .run import check_pool

    check_folders(plan)
    for policy in plan.policies:
        check_pool(plan.workload, plan.machine, policy, plan.dram_gib)
    metadata = _metadata(plan)
    runs: list[RunOutcome] = []
    try:
        alone = {job.job_id: alone_s(job, plan.machine) for job in plan.workload.jobs}
        for policy in plan.policies:
            run, reason = run_recorded(plan, policy, alone_s=alone, metadata=metadata)
            runs.append(run)
            _warn_of_failures(run)
            if reason is not None:
                return runs, reason
    except KeyboardInterrupt:  # before the first run, or between two
        return runs, "interrupted"
    return runs, None


def _metadata(plan: SimulationPlan) -> dict[str, Any]:
    """Nothing in it depends on when or where the simulation ran: rows repeat byte for byte."""
    from agentkv.testing.vllm_scheduler import VLLM_VERSION

    where = provenance()
    return {
        "commit": where["commit"],
        "versions": where["versions"] | {"vllm": VLLM_VERSION},
        "is_simulated": True,
        "repeat": 0,
        "config": plan.config,
    }


def _document(
    plan: SimulationPlan, runs: Sequence[RunOutcome], reason: str | None
) -> dict[str, Any]:
    """All there is to know of the runs but their rows."""
    return {
        "workload": plan.described,
        "machine": plan.machine.as_dict(),
        "seed": plan.workload.seed,
        "ended_early": reason,
        "policies": {run.policy: policy_entry(summarize(run), run.server) for run in runs},
        "metadata": _metadata(plan),
    }


def _warn_of_failures(run: RunOutcome) -> None:
    failed = [job for job in run.jobs if job.status == "failed"]
    if failed:
        print(
            f"agentkv simulate: {run.policy}: {len(failed)} of {len(run.jobs)} jobs failed, the "
            f"first because of {failed[0].turns[-1].error}; --max-context-tokens keeps jobs short",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())


DEFAULT_POLICIES = ("fcfs", "continuum")
DEFAULT_JOBS = 200
INFINITE = "infinite"
_NOT_OF_THE_RUN = ("out", "force", "json", "policy")


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """What is to be simulated, and where the results go."""

    workload: Workload
    described: dict[str, Any]
    machine: Machine
    policies: tuple[PolicyChoice, ...]
    has_jumps: bool
    dram_gib: float
    has_record: bool
    config: dict[str, Any]
    out: Path | None
    has_force: bool


def read_plan(argv: Sequence[str]) -> tuple[SimulationPlan, bool]:
    """The plan, and whether only JSON is wanted on standard output.

    Raises SimulationError or WorkloadError; argparse itself exits with status 2.
    """
    options = _parser().parse_args(argv)
    if options.jps is None and options.concurrency is None and options.arrivals in (None, "burst"):
        raise WorkloadError("give --jps R, jobs per second, or --concurrency N, jobs at once")
    fill_in(options, {"workload": "reference", "jobs": DEFAULT_JOBS})
    policies = [parse_policy(name) for name in dict.fromkeys(options.policy or DEFAULT_POLICIES)]
    num_blocks = None if options.blocks in (None, INFINITE) else _num_blocks(options.blocks)
    if options.blocks == INFINITE:
        policies = [replace(policy, is_infinite=True) for policy in policies]
    limits = Limits(
        num_blocks=num_blocks,
        block_tokens=options.block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_tokens=options.max_model_len,
        num_gpus=options.num_gpus,
        memory_utilization=options.gpu_memory_utilization,
    )
    machine = make_machine(options.gpu, options.model, limits)
    if options.dram_gb_s is not None:
        machine = replace(machine, pcie_bytes_s=options.dram_gb_s * 1e9)
    workload = workload_of(options)
    given = {name: value for name, value in vars(options).items() if name not in _NOT_OF_THE_RUN}
    plan = SimulationPlan(
        workload=workload,
        described=describe_workload(options, workload),
        machine=machine,
        policies=tuple(policies),
        has_jumps=not options.exact,
        dram_gib=options.dram_gib,
        has_record=options.record,
        config={**given, "model": machine.model},
        out=None if options.out is None else Path(options.out),
        has_force=options.force,
    )
    return plan, options.json


def _num_blocks(text: str) -> int:
    if text.isdecimal() and int(text) >= 2:
        return int(text)
    raise SimulationError(f"--blocks: got {text!r}, allowed is a number from 2 on, or {INFINITE}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv simulate",
        description="Compare policies on vLLM's real scheduler with a virtual clock: no server, "
        "no GPU. `agentkv simulate calibrate --help`: fit the times to a running server.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all jobs "
        "done, 1 some failed or were cut, 2 bad usage.",
    )
    _add_machine_options(parser)
    add_workload_options(parser)
    add = parser.add_argument_group("run").add_argument
    add("--max-turns", dest="turns", type=int, metavar="N", help="the same as --turns")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="fcfs, continuum[:paper|:released], context_serve, ..., each also with settings "
        """(continuum{"max_ttl_s": 5}), +offload (a DRAM tier) and @infinite (an unlimited """
        "pool), or @lossless (a tier without end, loads that take no time); may be given several "
        f"times (default {' and '.join(DEFAULT_POLICIES)})",
    )
    add(
        "--dram-gib",
        type=positive,
        default=DEFAULT_DRAM_GIB,
        metavar="GIB",
        help="memory of the tier of +offload policies (default %(default)g)",
    )
    add(
        "--dram-gb-s",
        type=positive,
        metavar="GB",
        help="rate at which the tier is loaded from, in GB/s (default: the GPU's PCIe)",
    )
    add("--exact", action="store_true", help="single steps, no jumps: slower, same results")
    add("--record", action="store_true", help="with --out: also keep each policy's timestamps")
    add("--out", metavar="DIR", help="write each policy's run.json and turns.jsonl below DIR")
    add("--force", action="store_true", help="overwrite runs in --out")
    add("--json", action="store_true", help="print the JSON document alone")
    return parser


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("machine").add_argument
    add(
        "--gpu",
        required=True,
        metavar="NAME|FILE",
        help=f"one of {', '.join(catalog.GPUS)}, or a profile written by calibrate",
    )
    add(
        "--model",
        metavar="NAME",
        help=f"one of {', '.join(catalog.MODELS)} (default llama-3.1-8b)",
    )
    add(
        "--num-gpus",
        type=whole_number(1),
        default=1,
        metavar="N",
        help="tensor parallel (default 1)",
    )
    add(
        "--blocks",
        metavar="N|infinite",
        help="KV blocks in the pool, as --num-gpu-blocks-override (default: what fits the GPU)",
    )
    add("--block-size", type=whole_number(1), metavar="TOKENS", help="tokens a block (default 16)")
    add(
        "--gpu-memory-utilization",
        type=share,
        default=catalog.GPU_MEMORY_UTILIZATION,
        metavar="X",
        help="share of the memory that the server takes (default %(default)s, vLLM's)",
    )
    add(
        "--max-num-seqs",
        type=whole_number(1),
        metavar="N",
        help="turns that run at once (vLLM's default)",
    )
    add(
        "--max-num-batched-tokens",
        type=whole_number(1),
        metavar="N",
        help="of one step (vLLM's default)",
    )
    add(
        "--max-model-len",
        type=whole_number(1),
        metavar="TOKENS",
        help="longest context taken (default: the model's, or the pool's if that is less)",
    )


RECORD_EVENTS = 5_000_000
RECORD_FILE = "timestamps.json"


def run_recorded(
    plan: SimulationPlan,
    policy: PolicyChoice,
    *,
    alone_s: Mapping[str, float],
    metadata: Mapping[str, Any],
) -> tuple[RunOutcome, str | None]:
    """The run, and why it ended early if it did: interrupted, stuck, or the disk full."""
    from .run import RunOptions, Simulation

    options = RunOptions(
        has_jumps=plan.has_jumps,
        dram_gib=plan.dram_gib,
        record_events=RECORD_EVENTS if plan.has_record and plan.out is not None else 0,
    )
    simulation = Simulation(plan.workload, plan.machine, policy, options, alone_s=alone_s)
    folder = folder_of(plan.out, policy)
    facts = row_facts(policy.name, plan.described, metadata)
    writer = None if folder is None else RunWriter(folder, facts, force=plan.has_force)
    with writer or nullcontext(), progress(policy.name, len(plan.workload.jobs)) as show:
        reason = _play(simulation, writer, show)
        result = simulation.result()
        machine = simulation.machine.as_dict()
        facts = {**metadata, "machine": machine, "num_blocks": machine["num_blocks"]}
        run = RunOutcome(policy.name, plan.described, result.jobs, result.counters, facts)
        if writer is not None and folder is not None:
            reason = _told(lambda: _finish(writer, folder, run, result)) or reason
    return run, reason and f"{policy.name}: {reason}"


def _play(simulation: Simulation, writer: RunWriter | None, show: ShowJobs) -> str | None:
    def job_ended(job: JobOutcome, num_ended: int) -> None:
        if writer is not None:
            writer.add_job(job)
        show(simulation.num_arrived, num_ended, simulation.now_s)

    return _told(lambda: simulation.run(on_job_end=job_ended))


def _told(action: Callable[[], object]) -> str | None:
    """Do it; what kept it from being done, if anything did that leaves results worth keeping."""
    try:
        action()
    except KeyboardInterrupt:
        return "interrupted"
    except (StuckError, OSError) as error:
        return str(error)
    return None


def _finish(writer: RunWriter, folder: Path, run: RunOutcome, result: SimulatedRun) -> None:
    for job in result.jobs:
        if job.status == "cut":
            writer.add_job(job)
    writer.finish(run)
    if result.record is not None and result.record["jobs"]:
        text = json.dumps(result.record) + "\n"
        (folder / RECORD_FILE).write_text(text, encoding="utf-8")


def folder_of(out: Path | None, policy: PolicyChoice) -> Path | None:
    """Where a policy's files go; None where none are wanted."""
    return None if out is None else out / re.sub(r"[^\w.+@-]", "-", policy.name)


def check_folders(plan: SimulationPlan) -> None:
    """Before minutes of work: nothing there may be in the way. Raises AgentKVError."""
    for policy in plan.policies:
        folder = folder_of(plan.out, policy)
        for name in (RUN_FILE, TURNS_FILE):
            if folder is not None and (folder / name).exists() and not plan.has_force:
                raise AgentKVError(f"{folder / name} exists: choose another --out, or --force")


KEYS = (
    "jobs",
    "completed",
    "failed",
    "cut",
    "mean_s",
    "p50_s",
    "p90_s",
    "p95_s",
    "p99_s",
    "max_s",
    "slowdown_p99",
    "slowdown_max",
    "ttft_first_p99_s",
    "ttft_first_max_s",
    "ttft_continuing_p99_s",
    "ttft_continuing_max_s",
    "hit_rate",
    "preemptions",
    "recomputed_tokens",
    "tokens_per_s",
)
"""What the document says of each policy."""

_COLUMNS = (
    ("mean s", "mean_s", ".2f"),
    ("p50 s", "p50_s", ".2f"),
    ("p99 s", "p99_s", ".2f"),
    ("max s", "max_s", ".2f"),
    ("slowdown p99", "slowdown_p99", ".2f"),
    ("first TTFT p99 s", "ttft_first_p99_s", ".2f"),
    ("next TTFT p99 s", "ttft_continuing_p99_s", ".2f"),
    ("hits", "hit_rate", ".1%"),
    ("preempted", "preemptions", "d"),
    ("recomputed", "recomputed_tokens", ",d"),
)


def policy_entry(summary: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """One policy in the document."""
    reloads = {name: server[name] for name in ("reloads", "reloaded_tokens") if server.get(name)}
    return {**{key: summary[key] for key in KEYS}, **reloads}


def table(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a policy; means also against the first policy's."""
    rows = [["policy", "jobs", "vs first", *(title for title, _, _ in _COLUMNS)]]
    first = next(iter(policies.values()), {})
    for name, entry in policies.items():
        cells = [_cell(entry[key], form) for _, key, form in _COLUMNS]
        done = f"{entry['completed']}/{entry['jobs']}"
        rows.append([name, done, _change(entry["mean_s"], first.get("mean_s")), *cells])
    return _aligned(rows)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _change(mean_s: float | None, first_s: float | None) -> str:
    if mean_s is None or not first_s:
        return "-"
    return f"{mean_s / first_s - 1.0:+.1%}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


LINE_EVERY_S = 5.0

ShowJobs = Callable[[int, int, float], None]
"""Takes jobs arrived, jobs ended, seconds of virtual time."""


@contextmanager
def progress(label: str, num_jobs: int) -> Iterator[ShowJobs]:
    """Gives a function to call after each job."""
    if sys.stderr.isatty():
        with _bar(label, num_jobs) as show:
            yield show
    else:
        yield _lines(label, num_jobs)


@contextmanager
def _bar(label: str, num_jobs: int) -> Iterator[ShowJobs]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}")
    with Progress(*text, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=num_jobs, line="")

        def show(arrived: int, ended: int, virtual_s: float) -> None:
            bar.update(task, completed=ended, line=progress_line(arrived, ended, virtual_s))

        yield show


def _lines(label: str, num_jobs: int) -> ShowJobs:
    started_s = shown_s = time.monotonic()

    def show(arrived: int, ended: int, virtual_s: float) -> None:
        nonlocal shown_s
        now_s = time.monotonic()
        if now_s - shown_s >= LINE_EVERY_S or ended == num_jobs:
            shown_s = now_s
            rate = ended / max(now_s - started_s, 1e-9)
            line = progress_line(arrived, ended, virtual_s)
            print(
                f"{label}: {line} of {num_jobs} jobs, {rate:.0f} jobs/s",
                file=sys.stderr,
                flush=True,
            )

    return show


def progress_line(arrived: int, ended: int, virtual_s: float) -> str:
    """Where a run is, in words."""
    return f"{virtual_s:.0f} s: {arrived} arrived, {arrived - ended} running, {ended} ended"
