"""`agentkv simulate`: the same jobs under each policy, on vLLM's scheduler with a virtual clock.

`plan` reads the flags, `run` plays what they describe; here the results are shown.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    positive,
    print_result,
    whole_number,
)

from ..options import add_workload_options, loads
from ..outcomes import COLUMNS, ROLE_KEYS, RunOutcome, fastest_in_words, summarize
from ..tables import cell, text_table
from .alone import jobs_that_fit
from .machine import DEFAULT_DRAM_GIB, add_machine_options
from .plan import DEFAULT_POLICIES, SimulationPlan, make_plan

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


def main(argv: Sequence[str]) -> int:
    """0: all jobs done; 1: some failed or were cut. Raises before the first is simulated."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)  # that it has none for CPUs
    if argv[:1] == ["calibrate"]:
        from .calibrate import main as calibrate  # loads scipy

        return calibrate(argv[1:])
    flags = _parser().parse_args(argv)
    plan = make_plan(flags)
    from .run import play  # loads vLLM, which takes seconds: the flags are good by now
    from .vllm_scheduler import VLLM_VERSION

    runs, reason = play(plan)
    if reason is not None:
        print(f"agentkv simulate: ended early: {reason}", file=sys.stderr)
    entries = {run.policy: policy_entry(summarize(run), run.server) for run in runs}
    document = {
        "workload": plan.described,
        "machine": plan.machine.as_dict(),
        "seed": plan.workload.seed,
        "ended_early": reason,
        "policies": entries,
        "metadata": plan.metadata(VLLM_VERSION),
    }
    text = f"{_table(entries)}\n{_sentence(plan, runs, entries)}"
    print_result(document, text, is_json=flags.json)
    is_done = reason is None and all(job.status == "done" for run in runs for job in run.jobs)
    return DONE if is_done else FAILED


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


def _sentence(
    plan: SimulationPlan, runs: Sequence[RunOutcome], policies: Mapping[str, Mapping[str, Any]]
) -> str:
    """What the table says, in words, with the load that it is about."""
    means = {name: entry["mean_s"] for name, entry in policies.items() if entry["completed"]}
    if not means or (first := next(iter(policies))) not in means:
        return "No job was completed."
    if not any(entry["recomputed_tokens"] or entry["preemptions"] for entry in policies.values()):
        peaks = (run.server["peak_blocks"] / run.metadata["num_blocks"] for run in runs)
        peak = max(peaks)
        flag = "--jps" if plan.workload.concurrency is None else "--concurrency"
        return (
            f"{_load(plan)}: memory was never short: at most {math.ceil(100 * peak)}% of the pool "
            "was taken, and no turn computed again what an earlier one had. "
            f"Raise {flag}, or lower --blocks."
        )
    return f"{_load(plan)}: {fastest_in_words(means, first)}"


def _load(plan: SimulationPlan) -> str:
    """The load in words, jobs at once relative to those that fit."""
    jobs, num_at_once = plan.workload.jobs, plan.workload.concurrency
    if num_at_once is not None:
        share = num_at_once / jobs_that_fit(jobs, plan.machine)
        return f"With {num_at_once} jobs at once, {share:.1f} times what fits"
    if plan.described["jps"] is not None:
        return f"With {plan.described['jps']:g} jobs a second"
    return f"With {len(jobs)} jobs at their times"


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
