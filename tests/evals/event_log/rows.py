"""Events as a server's record has them, written short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentkv.evals.event_log.jobs import JobRecord, jobs_of
from agentkv.evals.event_log.reading import Event, JobKey, Record

ROW = dict[str, Any]


def arrival(at_s: float, turn: int, prompt: int, **more: Any) -> ROW:
    return {"event": "arrival", "at_s": at_s, "turn": turn, "prompt_length": prompt, **more}


def start(at_s: float, prompt: int, hit: int, expected: int, waited_s: float = 0.0) -> ROW:
    return {
        "event": "waiting_to_running",
        "at_s": at_s,
        "prompt_length": prompt,
        "hit_length": hit,
        "expected_hit_length": expected,
        "waited_s": waited_s,
    }


def finish(at_s: float, turn: int, context: int) -> ROW:
    return {"event": "finish", "at_s": at_s, "turn": turn, "context_length": context}


def evicted(at_s: float, lost: int) -> ROW:
    return {"event": "evicted", "at_s": at_s, "lost_tokens": lost}


def pinned(at_s: float, blocks: int) -> ROW:
    return {"event": "pinned", "at_s": at_s, "blocks": blocks, "ttl_s": 2.0, "reason": "fixed"}


def unpinned(at_s: float, reason: str, blocks: int, held_s: float = 1.0) -> ROW:
    row = {"event": "unpinned", "at_s": at_s, "reason": reason, "blocks": blocks}
    return {**row, "held_s": held_s}


def tool(at_s: float, state: str, command: str, duration_s: float | None = None) -> ROW:
    name = command.split()[0]
    row = {"event": f"tool_{state}", "at_s": at_s, "tool": name, "command": command}
    return {**row, "duration_s": duration_s}


def closed(at_s: float, reason: str = "released", turns: int = 2) -> ROW:
    return {"event": "closed", "at_s": at_s, "reason": reason, "turns": turns}


TWO_TURNS = [
    arrival(1.0, 1, 100),
    start(1.5, 100, 0, 0, 0.5),
    finish(2.0, 1, 112),
    pinned(2.0, 7),
    tool(2.1, "started", "pytest -q"),
    tool(4.9, "finished", "pytest -q", 2.8),
    arrival(5.0, 2, 160),
    unpinned(5.25, "returned", 7, 3.25),
    evicted(5.25, 32),
    start(5.25, 160, 80, 112, 0.25),
    finish(6.0, 2, 176),
    pinned(6.0, 11),
    unpinned(6.5, "released", 11, 0.5),
    closed(6.5),
]
"""One job: it loses two of its seven blocks while its tool runs."""


def record_of(*rows: ROW, job_id: str = "job", engine: int | None = None) -> Record:
    known = ("event", "at_s")
    events = [
        Event(row["event"], row["at_s"], {k: v for k, v in row.items() if k not in known})
        for row in rows
    ]
    return Record("test", {JobKey(job_id, engine): events})


def job_of(*rows: ROW) -> JobRecord:
    (job,) = jobs_of(record_of(*rows))
    return job


def write_record(path: Path, **jobs: list[ROW]) -> Path:
    """A file as the server writes it, the jobs one after the other."""
    lines = [json.dumps({"job_id": name, **row}) for name, rows in jobs.items() for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
