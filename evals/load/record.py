"""`agentkv record`: what a server with the plugin noted of each job, as a table and a picture.

SOURCE is the server's URL, the scheduler_timestamps.jsonl of its --run-output-dir (or that
folder), or a saved answer of GET /v1/agentkv/timestamps. Per job: the bubbles between its turns,
how much of each prompt was still in the cache, what eviction cost in the queue, and what became of
its pins.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..arguments import seconds, whole_number
from .record_events import read_record
from .record_jobs import JobRecord
from .record_overtaking import DEFAULT_AFTER_S, passed_over
from .record_replay import jobs_of
from .record_report import LEGEND, summary, table
from .record_totals import job_row, totals

DONE, FAILED, BAD_USAGE = 0, 1, 2
_MAX_TIMELINE_JOBS = 12


def main(argv: Sequence[str] | None = None) -> int:
    """0: read and shown; 1: the picture could not be written; 2: no such record, job or place."""
    options = _parser().parse_args(argv)
    picture = None if options.timeline is None else Path(options.timeline)
    try:
        if picture is not None and picture.suffix.lower() != ".png":
            raise AgentKVError(f"--timeline: got {options.timeline}, allowed is a name with .png")
        if picture is not None and picture.exists() and not options.force:
            raise AgentKVError(f"{picture} exists: give another --timeline, or --force")
        record = read_record(options.source, api_key=options.api_key)
        all_jobs = jobs_of(record)
        jobs = _chosen(all_jobs, options.job)
    except AgentKVError as error:
        print(f"agentkv record: {error}", file=sys.stderr)
        return BAD_USAGE
    if record.is_cut:
        print(f"{record.source}: the last line is incomplete, left out", file=sys.stderr)
    rows, total = [job_row(job) for job in jobs], totals(jobs)
    total["passed_over"] = passed_over(all_jobs, options.after)
    if not options.json:
        lines = [*table(rows, max_rows=options.top), "", *summary(total), "", LEGEND]
        print("\n".join(lines))
    status = DONE if picture is None else _draw(jobs, record.source, picture)
    if options.json:
        print(json.dumps({"source": record.source, "totals": total, "jobs": rows}))
    return status


def _chosen(jobs: Sequence[JobRecord], names: Sequence[str] | None) -> list[JobRecord]:
    if not names:
        return list(jobs)
    known = {job.job_id for job in jobs}
    missing = [name for name in names if name not in known]
    if missing:
        some = ", ".join(sorted(known)[:5])
        raise AgentKVError(f"no job {missing[0]!r} in the record; it has {len(known)}: {some}, ...")
    return [job for job in jobs if job.job_id in names]


def _draw(jobs: Sequence[JobRecord], source: str, picture: Path) -> int:
    from ..figures.record_timeline import draw_record  # matplotlib is slow to import

    try:
        title = "/".join(Path(source).parts[-2:]) if "://" not in source else source
        draw_record(jobs[:_MAX_TIMELINE_JOBS], picture, title=title)
    except (AgentKVError, OSError) as error:
        print(f"agentkv record: cannot write {picture}: {error}", file=sys.stderr)
        return FAILED
    if len(jobs) > _MAX_TIMELINE_JOBS:
        left_out = len(jobs) - _MAX_TIMELINE_JOBS
        print(f"{left_out} jobs left out of the picture; --job picks", file=sys.stderr)
    print(f"written to {picture}", file=sys.stderr)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv record", description=__doc__)
    add: Any = parser.add_argument
    add("source", metavar="SOURCE", help="URL, file or folder")
    add("--job", action="append", metavar="ID", help="only this job (repeatable)")
    add(
        "--top",
        type=whole_number(1),
        default=40,
        metavar="N",
        help="jobs in the table (default 40)",
    )
    add(
        "--after",
        type=seconds,
        default=DEFAULT_AFTER_S,
        metavar="S",
        help="count turns passed over after so many seconds of waiting (default %(default)g)",
    )
    add("--timeline", metavar="PNG", help="also draw the jobs, at most 12, over time")
    add("--force", action="store_true", help="overwrite the picture")
    add("--api-key", help="sent as a bearer token")
    add("--json", action="store_true", help="print one JSON document instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())
