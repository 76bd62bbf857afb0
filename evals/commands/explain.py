"""`agentkv explain`: why turns of a job missed the cache, and what to do about it.

Asks a running server, behind a router that of the job, for one job, or with --worst N for the jobs
that computed the most tokens a second time. For each turn that missed: what it was expected to
find, what it found, and the reason. A job is known for a while after its end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agentkv.command_line import DONE, FAILED, add_json, command_parser, url, whole_number
from agentkv.errors import InputError, StatusError
from agentkv.protocol import LARGE_HIT_UNIT_TOKENS, routing_headers
from agentkv.server.api import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.visible import visible

_INDENT = " " * 6


def main(argv: Sequence[str]) -> int:
    """0: shown; 1: the server knows no such job. Raises InputError for bad usage."""
    options = _parser().parse_args(argv)
    if (options.job is None) == (options.worst is None):
        raise InputError("give either a JOB or --worst N")
    by = {"api_key": options.api_key, "headers": routing_headers(options.job)}
    server = ServerAPI(options.url, **by, timeout_s=COMMAND_TIMEOUT_S)
    try:
        jobs = server.explained(options.job, worst=options.worst or 1)
    except StatusError as error:
        if error.status != 404:
            raise
        seen = f"{options.url} knows no job {options.job!r}: never seen, long over, or not yours"
        print(f"agentkv explain: {seen}", file=sys.stderr)
        return FAILED
    if options.json:
        print(json.dumps({"server": server.root_url, "jobs": jobs}))
    else:
        print("\n\n".join(map(report, jobs)) or "no jobs yet")
    return DONE


def report(job: Mapping[str, Any]) -> str:
    """One job as text: its sums, then each turn that missed."""
    tokens = job["tokens"]
    lost = {reason: count for reason, count in tokens["recomputed_tokens"].items() if count}
    found, prompts = tokens["later_hit_tokens"], tokens["later_prompt_tokens"]
    rate = f"{found / prompts:.0%} of their prompts" if prompts else "none yet"
    engine = f" (engine {job['engine']})" if "engine" in job else ""
    lines = [
        f"job {job['job_id']}{engine}",
        f"  found in the cache by later turns: {rate}, {found:,} of {prompts:,} tokens",
        "  computed twice: " + (", ".join(f"{n:,} {name}" for name, n in lost.items()) or "none"),
    ]
    if job.get("is_id_shared"):
        lines.append("  this id names several conversations at once -> give each its own")
    if (unit := job.get("hit_unit_tokens", 1)) > LARGE_HIT_UNIT_TOKENS:
        lines.append(f"  this model's cache hits in units of {unit:,} tokens -> see Hybrid models")
    for turn in job["turns"]:
        if turn["miss"] is not None:
            lines += _turn_lines(turn, turn["miss"])
    return "\n".join(map(visible, lines))


def _against_stock(savings: Mapping[str, Any]) -> str:
    """What later turns found in the cache, and what stock vLLM would have found."""
    prompts = savings.get("compared_tokens")
    if not prompts:
        return "not compared with stock yet"
    hits, stock = (savings[name] / prompts for name in ("compared_hit_tokens", "stock_hit_tokens"))
    return (
        f"{hits:.0%} of prompt tokens came from the cache; stock: about {stock:.0%}, "
        f"{savings['gained_engine_s']:.2f} s of engine time"
    )


def _turn_lines(turn: Mapping[str, Any], miss: Mapping[str, Any]) -> list[str]:
    found = f"found {turn['hit_tokens']:,} of {turn['expected_tokens']:,} tokens"
    lines = [f"  turn {turn['turn']}: {found}", f"{_INDENT}{miss['why']}"]
    if "text_was" in miss:
        lines += [
            f"{_INDENT}{name}: {json.dumps(miss['text_before'] + miss[field], ensure_ascii=False)}"
            for name, field in (("was", "text_was"), ("now", "text_now"))
        ]
    return [*lines, f"{_INDENT}-> {miss['advice']}"]


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("explain", __doc__)
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB", help="the job's id")
    worst_help = "the N jobs, at most 10, that computed the most tokens a second time"
    add("--worst", type=whole_number(1), metavar="N", help=worst_help)
    add("--url", type=url, default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    add("--api-key", help="sent as a bearer token")
    add_json(parser)
    return parser
