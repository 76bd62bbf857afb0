"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock.

With `--out`, each policy gets a folder with the files that `agentkv bench` writes, too.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    positive,
    print_result,
    whole_number,
)
from agentkv.errors import InputError, RunError
from agentkv.policies.names import DEFAULT_POLICY, PolicyChoice, folder_name, simulated_policy

from ..options import (
    add_workload_options,
    describe_workload,
    fill_in,
    loads,
    workload_of,
)
from ..outcomes import COLUMNS, ROLE_KEYS, JobOutcome, RunOutcome, fastest_in_words, summarize
from ..progress import progress
from ..rows import RUN_FILE, TURNS_FILE, RunWriter, provenance, require_free, row_facts
from ..tables import cell, text_table
from ..workload.plans import Workload, deal_jobs, with_children
from .alone import alone_s, jobs_that_fit
from .machine import DEFAULT_DRAM_GIB, Limits, Machine, add_machine_options, make_machine

if TYPE_CHECKING:
    from .run import Simulation

DEFAULT_POLICIES = ("fcfs", DEFAULT_POLICY)
DEFAULT_JOBS = 200
OVERLOAD = 1.2
"""Times the jobs whose contexts fit into the pool, where no load is given."""
INFINITE = "infinite"
RECORD_EVENTS = 5_000_000
KEYS = (
    *("jobs", "completed", "failed", "cut"),
    *("mean_s", "p50_s", "p90_s", "p95_s", "p99_s", "max_s", "slowdown_p99", "slowdown_max"),
    *("ttft_first_p99_s", "ttft_first_max_s"),
    *("ttft_continuing_p99_s", "ttft_continuing_max_s"),
    *("hit_rate", "preemptions", "recomputed_tokens", "tokens_per_s"),
)
"""What the document says of each policy."""
_SHOWN = tuple(name for name in COLUMNS if name != "p90_s")
"""The table's columns; those of conversations and steps only where there are any."""
_NOT_OF_THE_RUN = ("out", "force", "json", "policy")


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """The runs to simulate; `options` are the flags they were made from."""

    workload: Workload
    described: dict[str, Any]
    machine: Machine
    policies: tuple[PolicyChoice, ...]
    options: argparse.Namespace

    def folder_of(self, policy: PolicyChoice) -> Path | None:
        """Folder for a policy's files; None without --out."""
        out: str | None = self.options.out
        return None if out is None else Path(out) / folder_name(policy.name)

    def metadata(self) -> dict[str, Any]:
        """What all rows share. Nothing in it depends on the time or place of the simulation, so
        rows repeat byte for byte."""
        from .vllm_scheduler import VLLM_VERSION

        flags = vars(self.options).items()
        config = {name: value for name, value in flags if name not in _NOT_OF_THE_RUN}
        where = provenance()
        return {
            "commit": where["commit"],
            "versions": where["versions"] | {"vllm": VLLM_VERSION},
            "is_simulated": True,
            "repeat": 0,
            "config": {**config, "model": self.machine.model},
        }

    def document(self, runs: Sequence[RunOutcome], ended_early: str | None) -> dict[str, Any]:
        """The JSON document of the command; `ended_early` is the reason, if it did."""
        return {
            "workload": self.described,
            "machine": self.machine.as_dict(),
            "seed": self.workload.seed,
            "ended_early": ended_early,
            "policies": {run.policy: policy_entry(summarize(run), run.server) for run in runs},
            "metadata": self.metadata(),
        }


def main(argv: Sequence[str]) -> int:
    """0: all jobs done; 1: some failed or were cut. Raises before the first is simulated."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate

        return calibrate(argv[1:])
    options = _parser().parse_args(argv)
    plan = make_plan(options)
    runs, reason = _run_all(plan)
    if reason is not None:
        print(f"agentkv simulate: ended early: {reason}", file=sys.stderr)
    document = plan.document(runs, reason)
    text = f"{_table(document['policies'])}\n{_sentence(runs, document['policies'])}"
    print_result(document, text, is_json=options.json)
    is_done = reason is None and all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if is_done else FAILED


def make_plan(options: argparse.Namespace) -> SimulationPlan:
    """The runs that the flags describe; raises InputError."""
    has_number = options.jobs is not None
    fill_in(options, {"workload": "reference", "jobs": DEFAULT_JOBS})
    names = dict.fromkeys(options.policy or DEFAULT_POLICIES)
    policies = [simulated_policy(name) for name in names]
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
    if options.jps is None and options.concurrency is None and options.arrivals in (None, "burst"):
        _find_load(options, machine, has_number=has_number)
    workload = workload_of(options)
    described = describe_workload(options, workload)
    if "clients" in options:
        workload = deal_jobs(workload, options.clients)
        described["clients"] = options.clients
    return SimulationPlan(workload, described, machine, tuple(policies), options)


def _find_load(options: argparse.Namespace, machine: Machine, *, has_number: bool) -> None:
    """Set a load that makes memory short, where the flags name none; says so. The jobs are more
    than the default where it takes more, unless a flag says how many."""
    at_once = {"concurrency": 1, "jps": None, "arrivals": None, "duration": None}
    jobs = workload_of(argparse.Namespace(**{**vars(options), **at_once})).jobs
    options.concurrency = max(2, round(OVERLOAD * jobs_that_fit(jobs, machine)))
    if not has_number:
        options.jobs = max(options.jobs, 3 * options.concurrency)
    print(
        f"agentkv simulate: no load given: {options.concurrency} jobs at once (--concurrency), "
        f"{OVERLOAD:g} times what the pool holds, {options.jobs} jobs in all",
        file=sys.stderr,
    )


def _num_blocks(text: str) -> int:
    if text.isdecimal() and int(text) >= 2:
        return int(text)
    raise InputError(f"--blocks: got {text!r}, allowed is a number from 2 on, or {INFINITE}")


def _run_all(plan: SimulationPlan) -> tuple[list[RunOutcome], str | None]:
    """The runs, and the reason if they ended early."""
    # vLLM takes seconds to import: not before the flags are known to be good
    from .run import check_pool

    for policy in plan.policies:
        folder = plan.folder_of(policy)
        for name in (RUN_FILE, TURNS_FILE):
            if folder is not None:
                require_free(folder / name, force=plan.options.force)
        check_pool(plan.workload, plan.machine, policy, plan.options.dram_gib)
    runs: list[RunOutcome] = []
    try:
        jobs = with_children(plan.workload.jobs)
        alone = {job.job_id: alone_s(job, plan.machine) for job in jobs}
        for policy in plan.policies:
            run, reason = _run_policy(plan, policy, alone)
            runs.append(run)
            _warn_of_failures(run)
            if reason is not None:
                return runs, reason
    except KeyboardInterrupt:  # before the first run, or between two
        return runs, "interrupted"
    return runs, None


def _run_policy(
    plan: SimulationPlan, policy: PolicyChoice, alone: Mapping[str, float]
) -> tuple[RunOutcome, str | None]:
    """One policy's run, its rows on disk as jobs end; and the reason if it ended early."""
    from .run import RunOptions, Simulation

    options, folder, metadata = plan.options, plan.folder_of(policy), plan.metadata()
    run_options = RunOptions(
        has_jumps=not options.exact,
        dram_gib=options.dram_gib,
        record_events=RECORD_EVENTS if options.record and folder is not None else 0,
        has_tags=not options.untagged,
    )
    simulation = Simulation(plan.workload, plan.machine, policy, run_options, alone_s=alone)
    facts = row_facts(policy.name, plan.described, metadata)
    writer = None if folder is None else RunWriter(folder, facts, force=options.force)
    reason: str | None = None
    with writer or nullcontext():
        try:
            _play(simulation, policy.name, len(plan.workload.jobs), writer)
        except KeyboardInterrupt:
            reason = "interrupted"
        except (RunError, OSError) as error:
            reason = str(error)
        result, machine = simulation.result(), simulation.machine.as_dict()
        metadata |= {"machine": machine, "num_blocks": machine["num_blocks"]}
        run = RunOutcome(policy.name, plan.described, result.jobs, result.counters, metadata)
        try:
            if writer is not None:
                _finish(writer, run, result.record)
        except OSError as error:
            reason = str(error)
    return run, f"{policy.name}: {reason}" if reason else None


def _play(simulation: Simulation, name: str, num_jobs: int, writer: RunWriter | None) -> None:
    """Play all jobs; show how far they are, and write their rows as they end."""
    with progress(name, num_jobs, "jobs") as show:

        def job_ended(job: JobOutcome, num_ended: int) -> None:
            if writer is not None:
                writer.add_job(job)
            num_arrived, now_s = simulation.num_arrived, simulation.now_s
            show(
                num_ended,
                f"{num_arrived - num_ended} running, {now_s:.0f} s are simulated",
            )

        simulation.run(on_job_end=job_ended)


def _finish(writer: RunWriter, run: RunOutcome, record: dict[str, Any] | None) -> None:
    """Write the rows of jobs that were cut, the run and its event log."""
    for job in run.jobs:
        if job.status == "cut":
            writer.add_job(job)
    writer.finish(run, record if record is not None and record["jobs"] else None)


def _warn_of_failures(run: RunOutcome) -> None:
    failed = [job for job in run.jobs if job.status == "failed"]
    if failed:
        print(
            f"agentkv simulate: {run.policy}: {len(failed)} of {len(run.jobs)} jobs failed, the "
            f"first because of {failed[0].turns[-1].error}; --max-context-tokens keeps jobs short",
            file=sys.stderr,
        )


def policy_entry(summary: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """One policy in the document."""
    noted = ("reloads", "reloaded_tokens", "policy_faults_total")
    seen = {name: server[name] for name in noted if server.get(name)}
    of_roles = {key: summary[key] for key in ROLE_KEYS if key in summary}
    return {**{key: summary[key] for key in KEYS}, **of_roles, **seen}


def _table(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """A line per policy, with the mean relative to the first policy's."""
    first = next(iter(policies.values()), {})
    first_s = first.get("mean_s")
    columns = [name for name in _SHOWN if name in first]
    clients = list(first.get("clients", ()))
    rows = []
    for name, entry in policies.items():
        mean_s = entry["mean_s"]
        change = mean_s / first_s - 1.0 if mean_s is not None and first_s else None
        cells = [cell(entry[key], COLUMNS[key][1]) for key in columns]
        cells += [cell(entry["clients"][client]["mean_s"], ".2f") for client in clients]
        rows.append([name, f"{entry['completed']}/{entry['jobs']}", cell(change, "+.1%"), *cells])
    titles = [*(COLUMNS[key][0] for key in columns), *(f"{client} mean s" for client in clients)]
    return text_table(["policy", "jobs", "vs first", *titles], rows)


def _sentence(runs: Sequence[RunOutcome], policies: Mapping[str, Mapping[str, Any]]) -> str:
    """What the table says, in words."""
    means = {name: entry["mean_s"] for name, entry in policies.items() if entry["completed"]}
    if not means or (first := next(iter(policies))) not in means:
        return "No job was completed."
    if not any(entry["recomputed_tokens"] or entry["preemptions"] for entry in policies.values()):
        peaks = (run.server["peak_blocks"] / run.metadata["num_blocks"] for run in runs)
        peak = max(peaks)
        load = "--jps" if runs[0].workload.get("concurrency") is None else "--concurrency"
        return (
            f"Memory was never short: at most {math.ceil(100 * peak)}% of the pool was taken, and "
            f"no turn computed again what an earlier one had. Raise {load}, or lower --blocks."
        )
    return fastest_in_words(means, first)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "simulate",
        "Compare policies on vLLM's real scheduler with a virtual clock: no server, no GPU.\n"
        "`agentkv simulate calibrate --help`: fit the times to a running server.\n\n"
        "    agentkv simulate --gpu h100\n"
        "    agentkv simulate --gpu h100 --jps 2 --jobs 10 --policy fcfs --policy agentkv",
        epilog="Exit status: 0 all jobs done, 1 some failed or were cut, 2 bad usage.",
    )
    add_machine_options(parser)
    add_workload_options(parser)
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--max-turns", dest="turns", type=whole_number(1), metavar="N", help="the same as --turns")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="fcfs, continuum[:paper|:released], context_serve, ..., each also with settings "
        """(continuum{"max_ttl_s": 5}), +offload (a DRAM tier) and @infinite (an unlimited """
        f"pool); may be given several times (default {' and '.join(DEFAULT_POLICIES)})",
    )
    size = "memory of the tier of +offload policies (default %(default)g)"
    add("--dram-gib", type=positive, default=DEFAULT_DRAM_GIB, metavar="GIB", help=size)
    rate = "rate at which the tier is loaded from, in GB/s (default: the GPU's PCIe)"
    add("--dram-gb-s", type=positive, metavar="GB", help=rate)
    dealt = "deal the jobs to clients in proportion to these loads, such as alice=10,bob=1"
    add("--clients", type=loads, default=SUPPRESS, metavar="NAME=LOAD,...", help=dealt)
    add("--untagged", action="store_true", help="clients send no tags, tool events or releases")
    add("--exact", action="store_true", help="single steps, no jumps: slower, same results")
    add("--record", action="store_true", help="with --out: also keep each policy's event log")
    add("--out", metavar="DIR", help="write each policy's run.json and turns.jsonl below DIR")
    add("--force", action="store_true", help="overwrite files that exist")
    add_json(group)
    return parser
