"""The jobs of a trace in two parts: those to tune on, and those kept for the end."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from ..workload.plans import WorkloadError
from ..workload.traces import json_lines, read_traced_jobs

Part = Literal["tune", "held-out", "all"]
PARTS: tuple[Part, ...] = ("tune", "held-out", "all")
HELD_OUT_PERCENT = 30


def is_held_out(job_id: str) -> bool:
    """Whether a job is kept for the end; the same for a job in every file and every run."""
    return int(hashlib.sha256(job_id.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def trace_of_part(trace: Path, part: Part, folder: Path) -> Path:
    """A trace with the part's jobs alone, below `folder` unless it is all of them.

    Raises WorkloadError for a trace that is none, or without a job in this part.
    """
    read_traced_jobs(trace)
    if part == "all":
        return trace
    lines = [
        json.dumps(fields)
        for _, fields in json_lines(trace)
        if is_held_out(fields["job_id"]) == (part == "held-out")
    ]
    if not lines:
        raise WorkloadError(f"{trace}: none of its jobs is in the part {part!r}")
    path = folder / f"{part}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
