"""The runs that the flags of `agentkv simulate` describe, read once; vLLM is not loaded yet."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentkv.errors import InputError
from agentkv.policies.names import DEFAULT_POLICY, PolicyChoice, folder_name, simulated_policy

from ..options import describe_workload, fill_in, workload_of
from ..rows import provenance
from ..workload.plans import Workload, deal_jobs
from .alone import jobs_that_fit
from .machine import DEFAULT_DRAM_GIB, Limits, Machine, make_machine

DEFAULT_POLICIES = ("fcfs", DEFAULT_POLICY)
DEFAULT_JOBS = 200
OVERLOAD = 1.2
"""Times the jobs whose contexts fit into the pool, where no load is given."""
INFINITE = "infinite"
RECORD_EVENTS = 5_000_000
_NOT_OF_THE_RUN = ("out", "force", "json", "policy")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """With jumps or step by step, DRAM of an offload tier, events of the event log to keep; whether
    clients tag their requests and report tools."""

    has_jumps: bool = True
    dram_gib: float = DEFAULT_DRAM_GIB
    record_events: int = 0
    has_tags: bool = True


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


def make_plan(flags: argparse.Namespace) -> SimulationPlan:
    """The runs that the flags describe; raises InputError."""
    has_number = flags.jobs is not None
    fill_in(flags, {"workload": "reference", "jobs": DEFAULT_JOBS})
    policies = [simulated_policy(name) for name in dict.fromkeys(flags.policy or DEFAULT_POLICIES)]
    num_blocks = None if flags.blocks in (None, INFINITE) else _num_blocks(flags.blocks)
    if flags.blocks == INFINITE:
        policies = [replace(policy, is_infinite=True) for policy in policies]
    limits = Limits(
        num_blocks=num_blocks,
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
    if flags.jps is None and flags.concurrency is None and flags.arrivals in (None, "burst"):
        _find_load(flags, machine, has_number=has_number)
    workload = workload_of(flags)
    described = describe_workload(flags, workload)
    if "clients" in flags:
        workload = deal_jobs(workload, flags.clients)
        described["clients"] = flags.clients
    out = None if flags.out is None else Path(flags.out)
    options = RunOptions(
        has_jumps=not flags.exact,
        dram_gib=flags.dram_gib,
        record_events=RECORD_EVENTS if flags.record and out is not None else 0,
        has_tags=not flags.untagged,
    )
    config = {name: value for name, value in vars(flags).items() if name not in _NOT_OF_THE_RUN}
    return SimulationPlan(
        workload, described, machine, tuple(policies), options, config, out, flags.force
    )


def _find_load(flags: argparse.Namespace, machine: Machine, *, has_number: bool) -> None:
    """Set a load that makes memory short, where the flags name none; says so. The jobs are more
    than the default where it takes more, unless a flag says how many."""
    at_once = {"concurrency": 1, "jps": None, "arrivals": None, "duration": None}
    jobs = workload_of(argparse.Namespace(**{**vars(flags), **at_once})).jobs
    flags.concurrency = max(2, round(OVERLOAD * jobs_that_fit(jobs, machine)))
    if not has_number:
        flags.jobs = max(flags.jobs, 3 * flags.concurrency)
    print(
        f"agentkv simulate: no load given: {flags.concurrency} jobs at once (--concurrency), "
        f"{OVERLOAD:g} times what the pool holds, {flags.jobs} jobs in all",
        file=sys.stderr,
    )


def _num_blocks(text: str) -> int:
    if text.isdecimal() and int(text) >= 2:
        return int(text)
    raise InputError(f"--blocks: got {text!r}, allowed is a number from 2 on, or {INFINITE}")
