"""`agentkv compare`: the same jobs under each policy, on servers that it starts and stops itself.

Repeats are interleaved (A B C A B C) and every run gets a fresh server with the same flags. Without
--gpu it takes the demo model on the CPU, with memory made scarce: three policies by three repeats
end in under 25 minutes on two cores. Flags after `--` go to the servers. The last line on standard
output is one JSON document; Ctrl-C keeps what was measured, --resume goes on with it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..arguments import seconds, whole_number
from ..provenance import time_stamp
from .compare_profiles import CPU, GPU, Profile
from .compare_runs import ComparePlan, check_folders, run_all
from .comparison import compare
from .comparison_table import table
from .outcomes import RunOutcome
from .server_policies import policy_names, server_policy
from .summary import summarize
from .workload_options import add_workload_options, describe_workload, fill_in, workload_of

DONE, FAILED, BAD_USAGE = 0, 1, 2
DEFAULT_POLICIES = ("fcfs", "continuum", "context_serve")
BASELINE = "fcfs"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all jobs of all runs done; 1: some were not, or it broke off; 2: bad usage."""
    options = _parser().parse_args(argv)
    profile = GPU if options.gpu else CPU
    fill_in(options, dict(profile.workload))
    try:
        plan = _plan(options, profile)
        check_folders(plan, resume=options.resume, force=options.force)
    except (AgentKVError, OSError) as error:
        print(f"agentkv compare: {error}", file=sys.stderr)
        return BAD_USAGE
    runs, trouble = _collect(plan, resume=options.resume)
    if trouble is not None:
        print(f"agentkv compare: {trouble}", file=sys.stderr)
    document = _document(plan, runs, trouble)
    if not options.json and runs:
        print(table(compare(runs, _baseline(plan)), _baseline(plan)))
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1) + "\n"
        (plan.out / "compare.json").write_text(text, encoding="utf-8")
        print(f"runs and rows in {plan.out}", file=sys.stderr)
    except OSError as error:
        trouble = trouble or f"{plan.out}/compare.json could not be written: {error}"
        print(f"agentkv compare: {trouble}", file=sys.stderr)
    print(json.dumps(document), flush=True)
    are_done = all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if trouble is None and are_done else FAILED


def _collect(plan: ComparePlan, *, resume: bool) -> tuple[list[RunOutcome], str | None]:
    """The runs that were made, and what kept the others from being made."""
    runs: list[RunOutcome] = []
    # a server that is starting must not outlive us, whichever signal ends us
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for run in run_all(plan, resume=resume):
            runs.append(run)
    except (AgentKVError, OSError) as error:
        return runs, str(error)
    except KeyboardInterrupt:
        return runs, "interrupted"
    return runs, None


def _document(plan: ComparePlan, runs: Sequence[RunOutcome], trouble: str | None) -> dict[str, Any]:
    baseline = _baseline(plan)
    return {
        "baseline": baseline,
        "policies": {result.policy: result.as_dict() for result in compare(runs, baseline)},
        "runs": [{"repeat": run.metadata.get("repeat"), **summarize(run)} for run in runs],
        "workload": dict(plan.described),
        "config": dict(plan.config),
        "out": str(plan.out),
        "ended_early": trouble,
    }


def _baseline(plan: ComparePlan) -> str:
    names = [policy.name for policy in plan.policies]
    return BASELINE if BASELINE in names else names[0]


def _plan(options: argparse.Namespace, profile: Profile) -> ComparePlan:
    names = dict.fromkeys(options.policy or DEFAULT_POLICIES)
    workload = workload_of(options)
    num_blocks = options.num_gpu_blocks_override or profile.num_blocks
    scarce = () if num_blocks is None else ("--num-gpu-blocks-override", str(num_blocks))
    server_flags = (*profile.server_flags, *scarce, *options.server_flags)
    config = {name: value for name, value in vars(options).items() if name != "server_flags"}
    stamp = time_stamp()
    return ComparePlan(
        policies=tuple(server_policy(name) for name in names),
        repeats=options.repeats,
        workload=workload,
        described=describe_workload(options, workload),
        model=options.model or profile.model,
        server_flags=server_flags,
        out=Path(options.out or f"compare-{stamp}"),
        ready_timeout_s=profile.ready_timeout_s,
        limit_s=options.limit_s,
        config=config | {"server_flags": server_flags},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentkv compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help=f"give it for each policy; of {', '.join(policy_names())} "
        f"(default {', '.join(DEFAULT_POLICIES)})",
    )
    add("--repeats", type=whole_number(1), default=3, metavar="N", help="runs a policy (default 3)")
    add("--gpu", action="store_true", help="defaults for one GPU: the reference's A/B run")
    add("--model", help="name or folder (default: the demo model; with --gpu Llama-3.1-8B)")
    add(
        "--num-gpu-blocks-override",
        type=whole_number(1),
        metavar="N",
        help="blocks of KV cache (default on CPU: scarce)",
    )
    add_workload_options(parser)
    add = parser.add_argument_group("runs").add_argument
    add("--limit-s", type=seconds, metavar="S", help="cut what still runs of a run after so long")
    add("--out", metavar="DIR", help="a folder a run, and compare.json (default compare-TIME)")
    add("--resume", action="store_true", help="keep the complete runs in --out, make the others")
    add("--force", action="store_true", help="overwrite the runs in --out")
    add("--json", action="store_true", help="print the JSON document alone")
    add("server_flags", nargs="*", metavar="-- FLAG", help="more flags for the servers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
