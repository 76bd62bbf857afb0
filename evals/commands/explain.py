"""`agentkv explain`: a job's story: which turns missed the cache, why, and what to do about it.

Asks a running server (behind a router the one of the job) for one job, or with --worst N for the
jobs that computed the most tokens a second time; a job is known for a while after its end. LOG, a
file or folder of Claude Code, Codex, mini-swe-agent, OTLP or our own lines, is read without a
server: what each turn could have hit, and what broke. Example: agentkv explain run.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, FAILED, add_json, command_parser, url, whole_number
from agentkv.errors import InputError, StatusError
from agentkv.integrations.vllm.watch.explanations import explanation
from agentkv.protocol import LARGE_HIT_UNIT_TOKENS, routing_headers
from agentkv.server.api import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.visible import visible

from ..event_log import read_record
from ..traces.logs import read_turns
from ..traces.turns import TracedTurn, jobs_among
from .record import is_log_of_agents

MAX_WORST = 10
WHOLE = 0.98
"""A prompt that keeps this share of the context before it is said to go on from it: chosen."""
_INDENT = " " * 6


def main(argv: Sequence[str]) -> int:
    """0: shown; 1: no such job, or prompts of a log broke. Raises InputError for bad usage."""
    options = _parser().parse_args(argv)
    if options.worst is not None and options.worst > MAX_WORST:
        raise InputError(f"--worst: got {options.worst}, allowed are 1 to {MAX_WORST}")
    if options.job is not None and _is_path(options.job):
        return _explain_log(options)
    if (options.job is None) == (options.worst is None):
        raise InputError("give either a JOB, or a LOG, or --worst N")
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


def _is_path(name: str) -> bool:
    """True for a file or folder, and for a name that no job would have."""
    is_spelled_so = name.startswith(("/", "./", "~")) or name.endswith((".json", ".jsonl", ".gz"))
    return is_spelled_so or Path(name).exists()


def _explain_log(options: argparse.Namespace) -> int:
    """Show the jobs of a log that could not find all of their context, the worst first."""
    source = options.job
    if is_log_of_agents(source):
        jobs = list(explained_jobs(source))
    else:
        jobs = [
            {"job_id": job.label, "tokens": job.tokens.as_dict(), "turns": job.rows()}
            for job in read_record(source).jobs
        ]
    broken = sorted(filter(_num_lost, jobs), key=_num_lost, reverse=True)
    shown = broken[: options.worst or MAX_WORST]
    if options.json:
        print(json.dumps({"source": source, "num_jobs": len(jobs), "jobs": shown}))
    else:
        found = f"{len(broken)} of {len(jobs)} jobs computed tokens twice"
        if num_silent := sum(not job.get("has_messages", True) for job in jobs):
            found += f"; of {num_silent} the log has counts alone, without what broke a prompt"
        print("\n\n".join([*map(report, shown), found]))
    return FAILED if broken else DONE


def explained_jobs(source: str) -> Iterator[dict[str, Any]]:
    """Each job of a log as a server's answer of GET /v1/agentkv/explain has it, with all that its
    turns could have found in a cache that never loses anything, and so on any server."""
    for job_id, turns in jobs_among(read_turns(Path(source))).items():
        first = {"turn": turns[0].turn + 1, "prompt_tokens": turns[0].prompt_tokens}
        later = [_later_row(before, after) for before, after in pairwise(turns)]
        yield {
            "job_id": job_id,
            "has_no_hits": True,
            "has_messages": all(turn.change is not None for turn in turns[1:]),
            "tokens": {
                "later_prompt_tokens": sum(row["prompt_tokens"] for row in later),
                "later_hit_tokens": sum(row["hit_tokens"] for row in later),
                "recomputed_tokens": {
                    "diverged": sum(row["miss"]["tokens"] for row in later if row["miss"])
                },
            },
            "turns": [first | {"expected_tokens": 0, "hit_tokens": 0, "miss": None}, *later],
        }


def _later_row(before: TracedTurn, turn: TracedTurn) -> dict[str, Any]:
    change, expected = turn.change, before.context_tokens
    if change is not None:  # no more than the prompt has can be found
        expected = min(change["of_tokens"], turn.prompt_tokens)
    # at most all of it, where the log does not tell
    kept = min(expected, turn.prompt_tokens if turn.kept_tokens is None else turn.kept_tokens)
    miss = None
    if change is not None and kept < expected:
        miss = {"tokens": expected - kept, "reason": "diverged", **change}
        miss["why"], miss["advice"] = explanation(miss)
    elif change is None and kept < WHOLE * expected:
        place = "at most " if turn.kept_tokens is None else ""
        why = f"the prompt keeps {place}{kept:,} of {expected:,} tokens of the context before it"
        why += ", and is shorter" if turn.prompt_tokens < expected else ""
        advice = "log the messages of the requests: they tell what has changed"
        miss = {"tokens": expected - kept, "reason": "diverged", "why": why, "advice": advice}
    return {
        "turn": turn.turn + 1,
        "prompt_tokens": turn.prompt_tokens,
        "expected_tokens": expected,
        "hit_tokens": kept,
        "miss": miss,
    }


def _num_lost(job: Mapping[str, Any]) -> int:
    return sum(job["tokens"]["recomputed_tokens"].values())


def report(job: Mapping[str, Any]) -> str:
    """One job as text: its sums, then each turn that missed. Of a log without hits, what could have
    been found."""
    tokens = job["tokens"]
    lost = {reason: count for reason, count in tokens["recomputed_tokens"].items() if count}
    found, prompts = tokens["later_hit_tokens"], tokens["later_prompt_tokens"]
    rate = f"{found / prompts:.0%} of their prompts" if prompts else "none yet"
    engine = f" (engine {job['engine']})" if "engine" in job else ""
    said = "could be found" if job.get("has_no_hits") else "found"
    lines = [
        f"job {job['job_id']}{engine}",
        f"  {said} in the cache by later turns: {rate}, {found:,} of {prompts:,} tokens",
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


def _turn_lines(turn: Mapping[str, Any], miss: Mapping[str, Any]) -> list[str]:
    found = f"found {turn['hit_tokens']:,} of {turn['expected_tokens']:,} tokens"
    lines = [f"  turn {turn['turn']}: {found}", f"{_INDENT}{miss['why']}"]
    if "text_was" in miss:
        lines += [
            f"{_INDENT}{name}: {json.dumps(miss['text_before'] + miss[field], ensure_ascii=False)}"
            for name, field in (("was", "text_was"), ("now", "text_now"))
        ]
    if "advice" in miss:  # a log of somebody else's may lack it
        lines.append(f"{_INDENT}-> {miss['advice']}")
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("explain", __doc__)
    add = parser.add_argument
    add("job", nargs="?", metavar="JOB|LOG", help="the job's id, or a log")
    worst_help = f"the N jobs, at most {MAX_WORST}, that computed the most tokens a second time"
    add("--worst", type=whole_number(1), metavar="N", help=worst_help)
    add("--url", type=url, default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    add("--api-key", help="sent as a bearer token")
    add_json(parser)
    return parser
