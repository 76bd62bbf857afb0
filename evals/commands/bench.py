"""`agentkv bench`: play agent jobs on servers, and measure what they take.

    agentkv bench --url http://localhost:8000 --jps 2 --jobs 100         # on a running server
    agentkv bench --policy fcfs --policy agentkv --out runs/ab           # on servers of its own
    agentkv bench --out runs/ab --resume                                 # where it broke off
    agentkv bench --policy agentkv -- --max-num-seqs 4                   # flags of its servers

Jobs come in an open loop (--jps) or a closed one (--concurrency); their tools sleep as long as real
ones ran, and every turn goes through the agentkv client, so that a policy sees what it would see
of real agents. With --url they are played on that server. Without it every policy and repeat gets
a fresh server of the demo model on the CPU, with memory made scarce, and repeats are interleaved.
Rows are on disk as turns end: Ctrl-C keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    positive,
    seconds,
    url,
    whole_number,
)
from agentkv.errors import AgentKVError, InputError
from agentkv.policies.names import (
    ADDITIONS,
    DEFAULT_POLICY,
    OFFLOAD,
    known_policies,
    server_policy,
)

from ..comparison import PolicyResult, compare, table
from ..options import (
    add_kept,
    add_server,
    add_workload_options,
    describe_workload,
    fill_in,
    workload_of,
)
from ..outcomes import RunOutcome, summarize
from ..player.servers import BenchPlan
from ..rows import time_stamp, write_whole

RESULT_FILE = "bench.json"
DEFAULT_POLICIES = ("fcfs", DEFAULT_POLICY)
RUNNING_SERVER = {"jps": 1.0, "jobs": 60}
"""Defaults of the workload with --url."""


class CPU:
    """The demo model with memory for three whole jobs of the six at once: defaults without --url.

    Half of the reference's tokens, so that a run takes a minute or two on two cores. Chosen with
    `agentkv simulate` on a profile calibrated to such a server.
    """

    workload: Mapping[str, Any] = MappingProxyType(
        {"workload": "reference", "jobs": 12, "concurrency": 6, "token_scale": 0.5}
    )
    server_flags = ("--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "8")
    num_blocks = 144
    repeats = 3
    dram_gib = 1.0


def main(argv: Sequence[str]) -> int:
    """0: all jobs of all runs done; 1: some were not, or it broke off. Raises before the first."""
    options, plan = read_plan(argv)
    plan.check_folders(resume=options.resume)
    runs, trouble = _collect(plan, resume=options.resume)
    if trouble is not None:
        print(f"agentkv bench: {trouble}", file=sys.stderr)
    results = compare(runs, plan.baseline, options.deadline)
    if runs and not options.json:
        print(report(runs, results, plan.baseline))
    document = {
        "baseline": plan.baseline,
        "policies": {result.policy: asdict(result) for result in results},
        "runs": [
            {
                "repeat": run.metadata.get("repeat"),
                **summarize(run, options.deadline),
                "server": dict(run.server),
                "metadata": dict(run.metadata),
            }
            for run in runs
        ],
        "workload": dict(plan.described),
        "config": dict(plan.config),
        "out": None if plan.out is None else str(plan.out),
        "ended_early": trouble,
    }
    is_kept = plan.out is None or _keep(plan.out / RESULT_FILE, document)
    if options.json:
        print(json.dumps(document), flush=True)
    are_done = all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if trouble is None and are_done and is_kept else FAILED


def _collect(plan: BenchPlan, *, resume: bool) -> tuple[list[RunOutcome], str | None]:
    """The runs that were made, and the reason if not all of them were.

    Raises what a running server or the flags had against the first run.
    """
    runs: list[RunOutcome] = []
    # a server that is starting must not outlive us: SIGTERM ends us as SIGINT does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for run in plan.play_all(resume=resume):
            runs.append(run)
    except (AgentKVError, OSError) as error:
        if plan.url is not None and not runs:
            raise
        return runs, str(error)
    except KeyboardInterrupt:
        return runs, "interrupted"
    return runs, None


def _keep(path: Path, document: Mapping[str, Any]) -> bool:
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        print(f"agentkv bench: {path} could not be written: {error}", file=sys.stderr)
        return False
    print(f"runs and rows in {path.parent}", file=sys.stderr)
    return True


def read_plan(argv: Sequence[str]) -> tuple[argparse.Namespace, BenchPlan]:
    """The flags, and the runs that they ask for. Raises InputError."""
    options = _parser().parse_args(argv)
    is_running = options.url is not None
    fill_in(options, dict(RUNNING_SERVER if is_running else CPU.workload))
    names = dict.fromkeys(options.policy or (() if is_running else DEFAULT_POLICIES))
    if options.resume and options.out is None:
        raise InputError("--resume: give the --out of the runs to go on with")
    if is_running:
        _check_running(options, names)
    else:
        options.num_gpu_blocks_override = options.num_gpu_blocks_override or CPU.num_blocks
    scarce = ("--num-gpu-blocks-override", str(options.num_gpu_blocks_override))
    server_flags = () if is_running else (*CPU.server_flags, *scarce, *options.server_flags)
    workload = workload_of(options)
    out = options.out if is_running else options.out or f"bench-{time_stamp()}"
    kept = {name: value for name, value in vars(options).items() if name != "api_key"}
    return options, BenchPlan(
        policies=tuple(map(server_policy, names)),
        repeats=options.repeats or (1 if is_running else CPU.repeats),
        workload=workload,
        described=describe_workload(options, workload),
        config=kept | {"server_flags": server_flags},
        force=options.force,
        api_key=options.api_key,
        out=None if out is None else Path(out),
        url=options.url,
        model=options.model,
        server_flags=server_flags,
        dram_gib=options.dram_gib or CPU.dram_gib,
    )


def _check_running(options: argparse.Namespace, policies: Iterable[str]) -> None:
    """Raise InputError for flags that say how to start a server, and for two policies."""
    if len(list(policies)) > 1:
        raise InputError("--url: a running server has one policy: give --policy once, or no --url")
    for name in ("num_gpu_blocks_override", "dram_gib", "server_flags"):
        if getattr(options, name):
            flag = "flags after --" if name == "server_flags" else f"--{name.replace('_', '-')}"
            raise InputError(f"--url: the server runs already: leave out {flag}")


def report(runs: Sequence[RunOutcome], results: Sequence[PolicyResult], baseline: str) -> str:
    """A line a policy, then outputs and failures."""
    parts = [table(results, baseline)]
    # outputs must be the same: scheduling changes timing, never text
    parts += [
        f"{result.policy}: {result.turns_compared - result.turns_differing} of "
        f"{result.turns_compared} turns have the outputs of {baseline}"
        for result in results
        if result.policy != baseline and result.turns_compared
    ]
    reasons = Counter(
        job.turns[-1].error or ""
        for run in runs
        for job in run.jobs
        if job.status == "failed" and job.turns
    )
    parts += [f"failed ({count}): {reason}" for reason, count in reasons.most_common(3)]
    return "\n\n".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("bench", __doc__)
    server = parser.add_argument_group("servers")
    add: Any = server.add_argument
    add("--url", type=url, help="a running server (default: servers of its own, one a run)")
    names, defaults = ", ".join(known_policies()), ", ".join(DEFAULT_POLICIES)
    policy_help = f"repeatable; of {names}, {ADDITIONS} (default {defaults}; with --url what runs)"
    add("--policy", action="append", metavar="NAME", help=policy_help)
    repeats_help = f"runs a policy (default {CPU.repeats}; with --url 1)"
    add("--repeats", type=whole_number(1), metavar="N", help=repeats_help)
    add_server(server, "default: the demo model; with --url the first that the server offers")
    blocks_help = f"blocks of KV cache (default {CPU.num_blocks}: scarce)"
    add("--num-gpu-blocks-override", type=whole_number(1), metavar="N", help=blocks_help)
    dram_help = f"GiB of the tier behind {OFFLOAD} (default {CPU.dram_gib:g})"
    add("--dram-gib", type=positive, metavar="N", help=dram_help)
    add("server_flags", nargs="*", metavar="-- FLAG", help="more flags for its own servers")
    add_workload_options(parser)
    run = parser.add_argument_group("runs")
    add = run.add_argument
    deadline_help = "also show the share of jobs that end within S seconds"
    add("--deadline", type=seconds, metavar="S", help=deadline_help)
    kept = f"a folder a run, and {RESULT_FILE} (default bench-TIME; with --url nothing is kept)"
    add_kept(run, kept)
    add("--resume", action="store_true", help="keep the complete runs in --out, make the others")
    add_json(run)
    return parser
