"""`agentkv compare`: the same jobs under each policy, on servers that it starts and stops itself.

Repeats are interleaved (A B C A B C) and every run gets a fresh server with the same flags. It
takes the demo model on the CPU, with memory made scarce: three policies by three repeats end in
under 25 minutes on two cores. Flags after `--` go to the servers. A rival is somebody else's
scheduling, in vLLM (--rival) or in front of it (--rival-proxy). The last line on standard output is
one JSON document; Ctrl-C keeps what was measured, --resume goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    positive,
    print_document,
    seconds,
    whole_number,
)
from agentkv.errors import AgentKVError, InputError, RunError
from agentkv.policies.names import (
    ADDITIONS,
    DEFAULT_POLICY,
    OFFLOAD,
    STOCK_POLICIES,
    folder_name,
    known_policies,
    server_policy,
)
from agentkv.server.process import HTTPProcess, ServerProcess, free_port

from ..options import (
    add_kept,
    add_mode,
    add_workload_options,
    describe_workload,
    fill_in,
    workload_of,
)
from ..outcomes import COLUMNS, PolicyResult, RunOutcome, Spread, compare, summarize
from ..player.run import LoadOptions, load_server
from ..rivals import Contestant, Rival, read_rivals
from ..rows import RUN_FILE, TURNS_FILE, read_runs, time_stamp, write_whole
from ..tables import text_table
from ..workload.plans import Workload

DEFAULT_POLICIES = ("fcfs", DEFAULT_POLICY)
BASELINE = "fcfs"
TIER_FLAG = "--kv-tier-gib"
"""Of `agentkv serve`."""
CORES = "VLLM_CPU_OMP_THREADS_BIND"
"""Variable of vLLM's CPU build with the cores that a worker computes on. Left to itself vLLM 0.32
keeps one core for other processes, two if there is a KV connector, and none where that would leave
none: on two cores a server with a tier would compute on twice the cores of one without."""
_SHOWN = (
    *("mean_s", "p90_s", "max_s", "ttft_continuing_p99_s"),
    *("hit_rate", "recomputed_tokens", "preemptions"),
)
_RATIOS = ("mean_s", "p90_s")


class CPU:
    """The demo model with memory for three whole jobs of the six at once: defaults of the flags.

    Half of the reference's tokens, so that a run takes a minute or two on two cores. Chosen with
    `agentkv simulate` on a profile calibrated to such a server.
    """

    workload: Mapping[str, Any] = MappingProxyType(
        {"workload": "reference", "jobs": 12, "concurrency": 6, "token_scale": 0.5}
    )
    server_flags = ("--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "8")
    num_blocks = 144
    ready_timeout_s = 600.0
    dram_gib = 1.0


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """The runs of one comparison: `server_flags` are the same for every policy."""

    policies: tuple[Contestant, ...]
    repeats: int
    workload: Workload
    described: Mapping[str, Any]
    model: str | None
    server_flags: tuple[str, ...]
    out: Path
    ready_timeout_s: float
    limit_s: float | None
    mode: str = "replay"
    max_output_tokens: int = 512
    config: Mapping[str, Any] = field(default_factory=dict)
    dram_gib: float = CPU.dram_gib
    """Size of the tier of policies that have one."""

    @property
    def baseline(self) -> str:
        names = [policy.name for policy in self.policies]
        return BASELINE if BASELINE in names else names[0]

    def folder(self, policy: Contestant, repeat: int) -> Path:
        return self.out / f"{folder_name(policy.name)}-{repeat}"

    def runs(self) -> list[tuple[Contestant, int]]:
        """Interleaved, so that a machine that slows down slows all policies alike."""
        return [(policy, repeat) for repeat in range(self.repeats) for policy in self.policies]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of every server: the same cores for all, where some have a tier."""
        is_unlike = any(policy.has_offload for policy in self.policies)
        return {CORES: os.environ.get(CORES, all_cores())} if is_unlike else {}

    def args(self, policy: Contestant) -> tuple[str, ...]:
        """Flags of a policy's servers."""
        tier = (TIER_FLAG, f"{self.dram_gib:g}") if policy.has_offload else ()
        return (*self.server_flags, *policy.flags(), *tier)


def all_cores() -> str:
    """The cores that this process may use, as CORES has them."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))


def main(argv: Sequence[str]) -> int:
    """0: all jobs of all runs done; 1: some were not, or it broke off. Raises before the first."""
    options, plan = read_plan(argv)
    check_folders(plan, resume=options.resume, force=options.force)
    runs, trouble = _collect(plan, resume=options.resume)
    if trouble is not None:
        print(f"agentkv compare: {trouble}", file=sys.stderr)
    results = compare(runs, plan.baseline)
    if not options.json and runs:
        print(table(results, plan.baseline))
    document = {
        "baseline": plan.baseline,
        "policies": {result.policy: asdict(result) for result in results},
        "runs": [{"repeat": run.metadata.get("repeat"), **summarize(run)} for run in runs],
        "workload": dict(plan.described),
        "config": dict(plan.config),
        "out": str(plan.out),
        "ended_early": trouble,
    }
    is_kept = _keep(plan.out / "compare.json", document)
    print_document(document, is_asked_for=options.json)
    are_done = all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if trouble is None and are_done and is_kept else FAILED


def _keep(path: Path, document: Mapping[str, Any]) -> bool:
    try:
        write_whole(path, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        print(f"agentkv compare: {path} could not be written: {error}", file=sys.stderr)
        return False
    print(f"runs and rows in {path.parent}", file=sys.stderr)
    return True


def read_plan(argv: Sequence[str]) -> tuple[argparse.Namespace, ComparePlan]:
    """The flags, and the runs that they ask for. Raises InputError."""
    options = _parser().parse_args(argv)
    fill_in(options, dict(CPU.workload))
    workload = workload_of(options)
    num_blocks = str(options.num_gpu_blocks_override or CPU.num_blocks)
    scarce = ("--num-gpu-blocks-override", num_blocks)
    server_flags = (*CPU.server_flags, *scarce, *options.server_flags)
    rivals = read_rivals(options.rival, options.rival_proxy)
    names = dict.fromkeys(options.policy or DEFAULT_POLICIES)
    return options, ComparePlan(
        policies=(*map(server_policy, names), *rivals),
        repeats=options.repeats,
        workload=workload,
        described=describe_workload(options, workload),
        model=options.model,
        server_flags=server_flags,
        out=Path(options.out or f"compare-{time_stamp()}"),
        ready_timeout_s=CPU.ready_timeout_s,
        limit_s=options.limit_s,
        mode=options.mode,
        max_output_tokens=options.max_output_tokens,
        config=vars(options) | {"server_flags": server_flags},
        dram_gib=options.dram_gib or CPU.dram_gib,
    )


def check_folders(plan: ComparePlan, *, resume: bool, force: bool) -> None:
    """Raise InputError if runs exist already, unless they may be used or overwritten."""
    for policy, repeat in plan.runs():
        folder = plan.folder(policy, repeat)
        if (folder / TURNS_FILE).exists() and not (resume or force):
            raise InputError(
                f"{folder} holds a run: choose another --out, --resume to go on with it, "
                "or --force to overwrite it"
            )


def _collect(plan: ComparePlan, *, resume: bool) -> tuple[list[RunOutcome], str | None]:
    """The runs that were made, and the reason if not all of them were."""
    runs: list[RunOutcome] = []
    # a server that is starting must not outlive us: SIGTERM ends us as SIGINT does
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for run in run_all(plan, resume=resume):
            runs.append(run)
    except (AgentKVError, OSError) as error:
        return runs, str(error)
    except KeyboardInterrupt:
        return runs, "interrupted"
    return runs, None


def run_all(plan: ComparePlan, *, resume: bool) -> Iterator[RunOutcome]:
    """Each run as it ends; with `resume`, those that are complete on disk are read instead.

    Every run gets a server of its own: vLLM has no route that empties the cache and forgets what
    was learned. Raises RunError after the run that broke off, ServerStartError for a server
    that does not come up.
    """
    todo = plan.runs()
    for number, (policy, repeat) in enumerate(todo, start=1):
        label = f"[{number}/{len(todo)}] {policy.name}, repeat {repeat + 1} of {plan.repeats}"
        found = _complete_run(plan, policy, repeat) if resume else None
        if found is not None:
            print(f"{label}: on disk already", file=sys.stderr, flush=True)
            yield found
            continue
        print(f"{label}: starting its server", file=sys.stderr, flush=True)
        run, reason = _run(plan, policy, repeat)
        if run.jobs:
            yield run
        if reason is not None:
            raise RunError(f"{label}: ended early: {reason}")


def _run(plan: ComparePlan, policy: Contestant, repeat: int) -> tuple[RunOutcome, str | None]:
    folder = plan.folder(policy, repeat)
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(
        plan.model,
        policy=policy.scheduling_policy,
        args=plan.args(policy),
        log_path=folder / "server.log",
        environment=plan.environment,
        ready_timeout_s=plan.ready_timeout_s,
    )
    with ExitStack() as stack:
        processes: list[HTTPProcess] = [stack.enter_context(server)]
        if policy.scheduling_policy not in STOCK_POLICIES:
            print(f"watch it at {server.base_url}/agentkv/ui", file=sys.stderr, flush=True)
        if isinstance(policy, Rival) and policy.proxy:
            log, timeout_s, port = folder / "proxy.log", plan.ready_timeout_s, free_port()
            command = policy.proxy_command(server.root_url, port)
            proxy = HTTPProcess(
                command, name=policy.name, port=port, log_path=log, ready_timeout_s=timeout_s
            )
            processes.append(stack.enter_context(proxy))
        options = LoadOptions(
            base_url=server.base_url,
            policy=policy.name if isinstance(policy, Rival) else policy,
            turns_url=processes[-1].root_url,
            limit_s=plan.limit_s,
            mode=plan.mode,
            max_output_tokens=plan.max_output_tokens,
            out=folder,
            force=True,
            config={**plan.config, "rival": _rival_facts(policy)},
        )
        run, reason = load_server(plan.workload, plan.described, options, repeat=repeat)
        for process in processes:
            if not process.is_alive:
                reason = f"{reason or f'{process.name} ended'}; the end of its log, "
                reason += f"{process.log_path}:\n{process.log_tail()}"
        return run, reason


def _complete_run(plan: ComparePlan, policy: Contestant, repeat: int) -> RunOutcome | None:
    """The run on disk; None if it is missing or broke off.

    Raises InputError if it was made of other jobs or with other server flags.
    """
    folder = plan.folder(policy, repeat)
    if not (folder / RUN_FILE).exists():
        return None
    run = read_runs([folder])[0]
    if run.metadata.get("stopped_because") is not None:
        return None
    config = run.metadata.get("config", {})
    for name, then, now in (
        ("workload", run.workload, plan.described),
        ("server_flags", config.get("server_flags"), plan.server_flags),
        ("mode", config.get("mode", "replay"), plan.mode),
        ("max_output_tokens", config.get("max_output_tokens", 512), plan.max_output_tokens),
        ("dram_gib", config.get("dram_gib"), plan.config.get("dram_gib")),
        ("rival", config.get("rival"), _rival_facts(policy)),
    ):
        if json.dumps(then, sort_keys=True) != json.dumps(now, sort_keys=True):
            raise InputError(
                f"{folder}: was made with another {name}: {then}, now {now}: choose another "
                "--out, or --force"
            )
    return run


def _rival_facts(policy: Contestant) -> dict[str, Any] | None:
    return asdict(policy) if isinstance(policy, Rival) else None


def table(results: Sequence[PolicyResult], baseline: str) -> str:
    """A line a policy: jobs, means over the repeats, ratios to the baseline with their range."""
    ratios = [f"{name.removesuffix('_s')} / {baseline}" for name in _RATIOS]
    headings = [COLUMNS[name][0] for name in _SHOWN]
    rows = [
        [
            *(result.policy, result.repeats, f"{result.completed}/{result.jobs}"),
            *(_with_deviation(result.values[name], COLUMNS[name][1]) for name in _SHOWN),
            *(_with_range(result.ratios[name]) for name in _RATIOS),
        ]
        for result in results
    ]
    # outputs must be the same: scheduling changes timing, never text
    outputs = [
        f"{result.policy}: {result.turns_compared - result.turns_differing} of "
        f"{result.turns_compared} turns have the outputs of {baseline}"
        for result in results
        if result.policy != baseline and result.turns_compared
    ]
    return "\n".join(
        [
            text_table(["policy", "runs", "done/jobs", *headings, *ratios], rows, rule=True),
            "",
            *outputs,
        ]
    )


def _with_deviation(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "-"
    deviation = "" if spread.deviation is None else f" ±{spread.deviation:{form}}"
    return f"{spread.mean:{form}}{deviation}"


def _with_range(spread: Spread | None) -> str:
    """A mean, with least and most where they differ; `-` for None."""
    if spread is None:
        return "-"
    bounds = "" if spread.least == spread.most else f" ({spread.least:.2f}-{spread.most:.2f})"
    return f"{spread.mean:.2f}{bounds}"


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("compare", __doc__)
    add: Any = parser.add_argument_group("comparison").add_argument
    names, defaults = ", ".join(known_policies()), ", ".join(DEFAULT_POLICIES)
    policy_help = f"repeat for each policy; of {names}, {ADDITIONS} (default {defaults})"
    add("--policy", action="append", metavar="NAME", help=policy_help)
    rival_help = "somebody else's scheduling: a name, and the flags of its `vllm serve`; repeatable"
    add("--rival", action="append", default=[], metavar="NAME=FLAGS", help=rival_help)
    proxy_help = "a rival's proxy: its command, with {server} and {port} in it; repeatable"
    add("--rival-proxy", action="append", default=[], metavar="NAME=COMMAND", help=proxy_help)
    add("--repeats", type=whole_number(1), default=3, metavar="N", help="runs a policy (default 3)")
    add("--model", help="name or folder (default: the demo model)")
    blocks_help = "blocks of KV cache (default: scarce)"
    add("--num-gpu-blocks-override", type=whole_number(1), metavar="N", help=blocks_help)
    dram_help = f"GiB of the tier behind {OFFLOAD} (default {CPU.dram_gib:g})"
    add("--dram-gib", type=positive, metavar="N", help=dram_help)
    add_workload_options(parser)
    runs = parser.add_argument_group("runs")
    add = runs.add_argument
    add_mode(runs)
    add("--limit-s", type=seconds, metavar="S", help="cut jobs of a run that run after this time")
    add_kept(
        runs,
        "a folder a run, and compare.json (default compare-TIME)",
        resume="keep the complete runs in --out, make the others",
    )
    add_json(runs)
    add("server_flags", nargs="*", metavar="-- FLAG", help="more flags for the servers")
    return parser
