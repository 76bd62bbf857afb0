"""The flags of `agentkv simulate`, and the runs that they describe; vLLM is not loaded yet."""

from __future__ import annotations

import argparse
import sys
from argparse import SUPPRESS
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentkv.command_line import add_json, command_parser, positive
from agentkv.errors import InputError
from agentkv.policies.names import DEFAULT_POLICY, PolicyChoice, folder_name, simulated_policy

from ..options import (
    add_workload_options,
    describe_workload,
    fill_in,
    loads,
    rates,
    workload_of,
)
from ..rows import provenance
from ..workload.plans import Workload, deal_jobs
from .alone import jobs_that_fit
from .machine import (
    DEFAULT_DRAM_GIB,
    INFINITE,
    Limits,
    Machine,
    add_machine_options,
    make_machine,
)

DEFAULT_POLICIES = ("fcfs", DEFAULT_POLICY)
DEFAULT_JOBS = 200
OVERLOAD = 1.2
"""Times the jobs whose contexts fit into the pool, where no load is given."""
RECORD_EVENTS = 5_000_000
_NOT_OF_THE_RUN = ("out", "force", "json", "policy", "sweep")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """DRAM of an offload tier, events of the event log to keep, whether clients tag their requests
    and report tools; without jumps the engine goes step by step, for checking."""

    dram_gib: float = DEFAULT_DRAM_GIB
    record_events: int = 0
    has_tags: bool = True
    has_jumps: bool = True


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """What to simulate, and where rows go; `config` has the flags that rows carry."""

    workload: Workload
    described: dict[str, Any]
    machine: Machine
    policies: tuple[PolicyChoice, ...]
    options: RunOptions
    config: dict[str, Any]
    out: Path | None
    is_forced: bool

    def folder_of(self, policy: PolicyChoice) -> Path | None:
        """Folder for a policy's files; None without --out."""
        return None if self.out is None else self.out / folder_name(policy.name)

    def metadata(self, vllm_version: str) -> dict[str, Any]:
        """What all rows share. Nothing in it depends on the time or place of the simulation, so
        rows repeat byte for byte."""
        where = provenance()
        return {
            "commit": where["commit"],
            "versions": where["versions"] | {"vllm": vllm_version},
            "is_simulated": True,
            "repeat": 0,
            "config": {**self.config, "model": self.machine.model},
        }

    def load(self) -> str:
        """The load in words, jobs at once relative to those that fit."""
        num_at_once = self.workload.concurrency
        if num_at_once is not None:
            share = num_at_once / jobs_that_fit(self.workload.jobs, self.machine)
            return f"With {num_at_once} jobs at once, {share:.1f} times what fits"
        return f"With {self.described['jps']:g} jobs a second"


def make_plans(flags: argparse.Namespace) -> list[SimulationPlan]:
    """The runs that the flags describe: of one load, or of each that --sweep names."""
    if flags.sweep is None:
        return [make_plan(flags)]
    if flags.out is None or flags.jps or flags.concurrency:
        raise InputError("--sweep: needs --out, for rows and figures, and names the loads itself")
    return [
        make_plan(argparse.Namespace(**{**vars(flags), "jps": jps, "out": f"{flags.out}/{jps:g}"}))
        for jps in flags.sweep
    ]


def make_plan(flags: argparse.Namespace) -> SimulationPlan:
    """The runs of one load; raises InputError."""
    has_number = flags.jobs is not None
    fill_in(flags, {"workload": "reference", "jobs": DEFAULT_JOBS})
    policies = [simulated_policy(name) for name in dict.fromkeys(flags.policy or DEFAULT_POLICIES)]
    if flags.blocks == INFINITE:
        policies = [replace(policy, is_infinite=True) for policy in policies]
    limits = Limits(
        num_blocks=None if flags.blocks == INFINITE else flags.blocks,
        block_tokens=flags.block_size,
        max_num_seqs=flags.max_num_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_model_tokens=flags.max_model_len,
        num_gpus=flags.num_gpus,
        memory_utilization=flags.gpu_memory_utilization,
    )
    machine = make_machine(flags.gpu, flags.model, limits)
    if flags.dram_gb_s is not None:
        machine = replace(machine, pcie_bytes_s=flags.dram_gb_s * 1e9)
    if flags.jps is None and flags.concurrency is None:
        _find_load(flags, machine, has_number=has_number)
    workload = workload_of(flags)
    described = describe_workload(flags, workload)
    if "clients" in flags:
        workload = deal_jobs(workload, flags.clients)
        described["clients"] = flags.clients
    out = None if flags.out is None else Path(flags.out)
    options = RunOptions(
        dram_gib=flags.dram_gib,
        record_events=0 if out is None else RECORD_EVENTS,
        has_tags=not flags.untagged,
    )
    config = {name: value for name, value in vars(flags).items() if name not in _NOT_OF_THE_RUN}
    return SimulationPlan(
        workload, described, machine, tuple(policies), options, config, out, flags.force
    )


def _find_load(flags: argparse.Namespace, machine: Machine, *, has_number: bool) -> None:
    """Set a load that makes memory short, where the flags name none; says so. The jobs are more
    than the default where it takes more, unless a flag says how many."""
    jobs = workload_of(argparse.Namespace(**{**vars(flags), "concurrency": 1})).jobs
    flags.concurrency = max(2, round(OVERLOAD * jobs_that_fit(jobs, machine)))
    if not has_number:
        flags.jobs = max(flags.jobs, 3 * flags.concurrency)
    print(
        f"agentkv simulate: no load given: {flags.concurrency} jobs at once (--concurrency), "
        f"{OVERLOAD:g} times what the pool holds, {flags.jobs} jobs in all",
        file=sys.stderr,
    )


def parser() -> argparse.ArgumentParser:
    made = command_parser(
        "simulate",
        "Compare policies on vLLM's real scheduler with a virtual clock: no server, no GPU.\n"
        "`agentkv simulate calibrate --help`: fit the times to a running server.\n\n"
        "    agentkv simulate --gpu h100\n"
        "    agentkv simulate --gpu h100 --jps 2 --jobs 10 --policy fcfs --policy agentkv\n"
        "    agentkv simulate --gpu h100 --sweep 0.5,1,2 --out runs/sweep    # with its figures",
        epilog="Exit status: 0 all jobs done, 1 some failed, 2 bad usage.",
    )
    add_machine_options(made)
    add_workload_options(made)
    group = made.add_argument_group("run")
    add: Any = group.add_argument
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="fcfs, continuum[:paper|:released], context_serve, ..., each also with settings "
        """(continuum{"max_ttl_s": 5}), +offload (a DRAM tier) and @infinite (an unlimited """
        f"pool); may be given several times (default {' and '.join(DEFAULT_POLICIES)})",
    )
    swept = "instead of --jps: each of these rates, such as 0.5,1,2; figures are drawn into DIR"
    add("--sweep", type=rates, metavar="R,...", help=swept)
    size = "memory of the tier of +offload policies (default %(default)g)"
    add("--dram-gib", type=positive, default=DEFAULT_DRAM_GIB, metavar="GIB", help=size)
    rate = "rate at which the tier is loaded from, in GB/s (default: the GPU's PCIe)"
    add("--dram-gb-s", type=positive, metavar="GB", help=rate)
    dealt = "deal the jobs to clients in proportion to these loads, such as alice=10,bob=1"
    add("--clients", type=loads, default=SUPPRESS, metavar="NAME=LOAD,...", help=dealt)
    add("--untagged", action="store_true", help="clients send no tags, tool events or releases")
    add("--out", metavar="DIR", help="rows and event log of each policy go below DIR")
    add("--force", action="store_true", help="overwrite files that exist")
    add_json(group)
    return made
