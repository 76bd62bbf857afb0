"""The command line of `agentkv simulate`, validated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..options import (
    add_workload_options,
    describe_workload,
    fill_in,
    positive,
    share,
    whole_number,
    workload_of,
)
from ..workload.plans import Workload, WorkloadError
from . import catalog
from .errors import SimulationError
from .machine import Limits, Machine, make_machine
from .policies import PolicyChoice, parse_policy

DEFAULT_POLICIES = ("fcfs", "continuum")
DEFAULT_JOBS = 200
DEFAULT_DRAM_GIB = 64.0
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
        "no GPU. `agentkv simulate calibrate --help`: fit the times to a running server; "
        "`agentkv simulate study --help`: a whole grid of loads and pools.",
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
