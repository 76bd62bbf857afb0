"""`agentkv record`: the table of a server's jobs, or of a run's.

SOURCE is the URL of a server with the plugin, its scheduler_timestamps.jsonl (or that folder), the
folder of a run, or a saved answer of GET /v1/agentkv/timestamps. Per job: the time between its
turns, how much of each prompt was still in the cache, what eviction cost in the queue, and what
became of its pins. Example: agentkv record http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, add_json, command_parser, whole_number
from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import JobView
from agentkv.visible import visible

from ..event_log import job_row, read_record, totals
from ..tables import cell, text_table
from ..traces.logs import is_event_log

_MAX_LABEL_CHARS = 24
_COLUMNS = (
    *("job", "turns", "span s", "tools s", "queue s", "hit", "later prompt tok", "evicted"),
    *("pins", "used", "wasted", "preempted", "closed"),
)
LEGEND = (
    "tools, queue: from a turn's end to the next one's arrival, and from there to its start; hit:"
    "\nshare of later turns' prompts found in the cache; evicted: turns whose KV was gone; pins: KV"
    "\nkept for the next turn; used: it came in time; wasted: did not"
)


def main(argv: Sequence[str]) -> int:
    """0: read and shown. Raises InputError for bad usage."""
    options = _parser().parse_args(argv)
    if is_log_of_agents(options.source):
        raise InputError(f"{options.source}: no event log of a server; explain reads agents' logs")
    near = options.job[0] if options.job else None
    record = read_record(options.source, api_key=options.api_key, near=near)
    jobs = _chosen(record.jobs, options.job)
    if record.is_cut:
        print(f"{record.source}: the last line is incomplete, left out", file=sys.stderr)
    rows = [job_row(job) for job in jobs]
    total = totals(jobs)
    if not options.json:
        print("\n".join([table(rows, max_rows=options.top), "", *summary(total), "", LEGEND]))
    else:
        print(json.dumps({"source": record.source, "totals": total, "jobs": rows}))
    return DONE


def is_log_of_agents(source: str) -> bool:
    """True for a file or folder with anything but the event log of a server."""
    path = Path(source)
    return "://" not in source and path.exists() and not is_event_log(path)


def _chosen(jobs: Sequence[JobView], names: Sequence[str] | None) -> list[JobView]:
    known = {job.job_id for job in jobs}
    missing = [name for name in names or () if name not in known]
    if missing:
        some = ", ".join(map(visible, sorted(known)[:5]))
        raise InputError(f"no job {missing[0]!r} in the record; it has {len(known)}: {some}, ...")
    return [job for job in jobs if not names or job.job_id in names]


def table(rows: Sequence[Mapping[str, Any]], *, max_rows: int) -> str:
    """The first `max_rows` jobs as aligned lines, with a header and how many were left out."""
    lines = text_table(_COLUMNS, [_cells(row) for row in rows[:max_rows]])
    if len(rows) > max_rows:
        lines += f"\n... {len(rows) - max_rows} more jobs (--top {len(rows)} shows all)"
    return lines


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    job_id = str(row["job_id"])
    if len(job_id) > _MAX_LABEL_CHARS:
        job_id = job_id[: _MAX_LABEL_CHARS - 1] + "…"
    engine = "" if row["engine"] is None else f" @{row['engine']}"
    return (
        job_id + engine + (f" ({row['life']})" if row["life"] > 1 else ""),
        row["turns"],
        cell(row["ended_s"] - row["started_s"]),
        cell(row["tools_s"]),
        cell(row["queued_s"]),
        cell(row["hit_rate"], ".0%"),
        row["prompt_tokens"],
        row["turns_evicted"],
        row["pins"],
        row["pins_kept"],
        row["pins_wasted"],
        row["preemptions"],
        row["close_reason"] or "open",
    )


def summary(total: Mapping[str, Any]) -> list[str]:
    """Say in two sentences what the cache gave, then the numbers behind them."""
    ends = ", ".join(f"{n} {end}" for end, n in sorted(total["pin_ends"].items())) or "none ended"
    pinned = total["kept_block_s"] + total["wasted_block_s"]
    wasted = cell(total["wasted_block_s"] / pinned if pinned else None, ".0%")
    lost = ", ".join(f"{n:,} {reason}" for reason, n in total["recomputed_tokens"].items())
    found = (
        f"Later turns found {total['hit_rate']:.0%} of their prompts in the cache: "
        f"{total['hit_tokens']} of {total['prompt_tokens']} tokens; "
        f"{total['expected_tokens']} were left there by the turns before."
        if total["prompt_tokens"]
        else "No job had a second turn: there was nothing to find in the cache."
    )
    return [
        found,
        f"Computed twice: {lost or 'none'}; {total['turns_evicted']} turns whose KV was gone, "
        f"{total['turns_diverged']} whose prompt had changed.",
        "",
        f"{total['jobs']} {'job' if total['jobs'] == 1 else 'jobs'}, "
        f"{total['turns']} turns ({total['turns_finished']} finished, "
        f"{total['turns_aborted']} aborted), {total['preemptions']} preemptions",
        f"first token    first turns    {_seconds(total['ttft_first_s'])}",
        f"               later turns    {_seconds(total['ttft_later_s'])}",
        f"between turns  tools          {_seconds(total['tools_s'])}",
        f"in the queue   first turns    {_seconds(total['queued_first_s'])}",
        f"               KV still there {_seconds(total['queued_kept_s'])}",
        f"               KV was gone    {_seconds(total['queued_evicted_s'])}",
        f"pins           {total['pins']}: {ends}; {wasted} of pinned memory (blocks x seconds) "
        "was in vain",
    ]


def _seconds(spread: Mapping[str, Any]) -> str:
    if not spread["n"]:
        return "none"
    return (
        f"mean {spread['mean']:.3f} s, p50 {spread['p50']:.3f}, p90 {spread['p90']:.3f}, "
        f"max {spread['max']:.3f}  (n={spread['n']})"
    )


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("record", __doc__)
    add: Any = parser.add_argument
    add("source", metavar="SOURCE", help="URL, file or folder")
    add("--job", action="append", metavar="ID", help="only this job (repeatable)")
    top_help = "jobs in the table (default 40)"
    add("--top", type=whole_number(1), default=40, metavar="N", help=top_help)
    add("--api-key", help="sent as a bearer token")
    add_json(parser)
    return parser
