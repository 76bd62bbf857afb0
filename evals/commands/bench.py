"""`agentkv bench`: put many multi-turn agent jobs on a running server and measure what they take.

Jobs arrive in an open loop, their tools sleep as long as real ones ran, and every turn goes through
the agentkv client, so that the server's policy sees what it would see of real agents. The last line
on standard output is one JSON document. Ctrl-C ends the run and keeps what was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import (
    DONE,
    FAILED,
    add_json,
    command_parser,
    print_document,
    seconds,
    url,
)
from agentkv.policies.names import known_policies, server_policy

from ..options import (
    add_kept,
    add_mode,
    add_server,
    add_workload_options,
    describe_workload,
    fill_in,
    workload_of,
)
from ..outcomes import RunOutcome, summarize
from ..player.run import LoadOptions, load_server
from ..tables import cell, text_table

DEFAULTS = {"jps": 1.0, "duration": 60.0}
_FIRST_TOKENS = [
    f"ttft_{name}_s" for name in ("mean", "first_p99", "continuing_p99", "continuing_max")
]
DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


def main(argv: Sequence[str]) -> int:
    """0: all jobs done; 1: some failed or were cut. Raises before the first request."""
    options = _parser().parse_args(argv)
    fill_in(options, DEFAULTS)
    policy = None if options.policy is None else server_policy(options.policy)
    workload = workload_of(options)
    config = {name: value for name, value in vars(options).items() if name != "api_key"}
    load = LoadOptions(
        base_url=options.base_url,
        policy=policy,
        model=options.model,
        api_key=options.api_key,
        mode=options.mode,
        request_timeout_s=options.timeout_s,
        limit_s=options.limit_s,
        max_output_tokens=options.max_output_tokens,
        out=None if options.out is None else Path(options.out),
        force=options.force,
        config=config,
    )
    run, reason = load_server(workload, describe_workload(options, workload), load)
    if reason is not None:
        print(f"agentkv bench: ended early: {reason}", file=sys.stderr)
    summary = summarize(run)
    if not options.json:
        print(report(run, summary))
    document = {
        **summary,
        "ended_early": reason,
        "workload": dict(run.workload),
        "server": dict(run.server),
        "metadata": dict(run.metadata),
    }
    print_document(document, is_asked_for=options.json)
    is_done = reason is None and all(job.status == "done" for job in run.jobs)
    return DONE if is_done else FAILED


def report(run: RunOutcome, found: Mapping[str, Any]) -> str:
    """What happened to the jobs, how long they took, and each turn in a line."""
    hit_rate = cell(found["hit_rate"], ".1%", "an unknown share")
    columns = ("prompt_tokens", "cached_tokens", "latency_ms", "ttft_ms")
    by_turn = zip(*(found[f"per_turn_avg_{name}"] for name in columns), strict=True)
    lines = [
        f"{run.policy}, workload {run.workload.get('name')}, {_rate(run.workload)}: "
        f"{found['jobs']} jobs: {found['completed']} done, {found['failed']} failed, "
        f"{found['cut']} cut, in {found['duration_s']:.1f} s",
    ]
    measured = [
        f"job duration  {_times(found, ('mean_s', 'p50_s', 'p90_s', 'p99_s', 'max_s'))}",
        f"first token   {_times(found, _FIRST_TOKENS)}",
        f"cache         {hit_rate} of continuing prompts, {found['recomputed_tokens']} tokens "
        f"computed again, {cell(found['preemptions'], 'd', 'unknown')} preemptions",
        f"output        {found['output_tokens']} tokens, "
        f"{cell(found['tokens_per_s'], '.0f')} per second",
        "",
        text_table(
            ("turn", "prompt tokens", "cached tokens", "latency ms", "first token ms"),
            [
                (turn, *(cell(value, ".0f") for value in values))
                for turn, values in enumerate(by_turn, start=1)
            ],
            left=0,
        ),
    ]
    has_turns = any(turn.error is None for job in run.jobs for turn in job.turns)
    lines += measured if has_turns else ["nothing was measured: no turn has ended"]
    reasons = Counter(job.turns[-1].error or "" for job in run.jobs if job.status == "failed")
    if reasons:
        lines.append("")
    lines += [f"failed ({count}): {reason}" for reason, count in reasons.most_common(3)]
    return "\n".join(lines)


def _rate(workload: Mapping[str, Any]) -> str:
    if workload.get("concurrency") is not None:
        return f"{workload['concurrency']} at once"
    return "given times" if workload.get("jps") is None else f"{workload['jps']:g} jobs/s"


def _times(found: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{name.removesuffix('_s')} {cell(found[name], '.2f')} s" for name in names)


def _parser() -> argparse.ArgumentParser:
    rate = f"--jps {DEFAULTS['jps']:g} --duration {DEFAULTS['duration']:g}"
    epilog = f"How many and how fast, if nothing is given: {rate}"
    parser = command_parser("bench", __doc__, epilog=epilog)
    server = parser.add_argument_group("server")
    add: Any = server.add_argument
    add("--base-url", type=url, default=DEFAULT_BASE_URL, metavar="URL", help="default %(default)s")
    names = ", ".join(known_policies())
    policy_help = f"what the server must run, checked where it tells; one of {names}"
    add("--policy", metavar="NAME", help=f"{policy_help} (default: what it runs)")
    add_server(server)
    add_workload_options(parser)
    run = parser.add_argument_group("run")
    add = run.add_argument
    add_mode(run)
    add("--timeout-s", type=seconds, default=600.0, metavar="S", help="of one turn (600)")
    add("--limit-s", type=seconds, metavar="S", help="cut jobs that still run after this time")
    add_kept(run, "write turns.jsonl as turns end, and run.json")
    add_json(run)
    return parser
