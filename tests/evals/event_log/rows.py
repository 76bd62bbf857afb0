"""Events as a server's record has them, written short."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentkv.integrations.vllm.watch.job_view import JobView, job_views

ROW = dict[str, Any]


def event(name: str, at_s: float, **details: Any) -> ROW:
    return {"event": name, "at_s": at_s, **details}


def arrival(at_s: float, turn: int, prompt: int) -> ROW:
    return event("arrival", at_s, turn=turn, prompt_length=prompt)


def start(at_s: float, prompt: int, hit: int, expected: int, waited_s: float = 0.0) -> ROW:
    lengths = {"prompt_length": prompt, "hit_length": hit, "expected_hit_length": expected}
    kind = {"is_later": expected > 0, "is_side_request": False}
    return event("waiting_to_running", at_s, **lengths, **kind, waited_s=waited_s)


def finish(at_s: float, turn: int, context: int, output: int = 13) -> ROW:
    lengths = {"context_length": context, "output_length": output}
    return event("finish", at_s, turn=turn, **lengths, ttft_s=None)


def pinned(at_s: float, blocks: int) -> ROW:
    return event("pinned", at_s, blocks=blocks, ttl_s=2.0, reason="fixed")


def unpinned(at_s: float, reason: str, blocks: int, held_s: float = 1.0) -> ROW:
    return event("unpinned", at_s, reason=reason, blocks=blocks, held_s=held_s)


def tool(at_s: float, state: str, command: str, duration_s: float | None = None) -> ROW:
    details = {"tool": command.split()[0], "command": command, "duration_s": duration_s}
    return event(f"tool_{state}", at_s, **details)


MISS = {"tokens": 32, "reason": "pressure", "why": "another request took the memory"}
CLOSED = {"reason": "released", "turns": 2}
TWO_TURNS = [
    arrival(1.0, 1, 100),
    start(1.5, 100, 0, 0, 0.5),
    finish(2.0, 1, 112),
    pinned(2.0, 7),
    tool(2.1, "started", "pytest -q"),
    tool(4.9, "finished", "pytest -q", 2.8),
    arrival(5.0, 2, 160),
    unpinned(5.25, "returned", 7, 3.25),
    event("evicted", 5.25, lost_tokens=32),
    start(5.25, 160, 80, 112, 0.25),
    event("reuse", 5.25, turn=2, expected_tokens=112, miss=MISS),
    finish(6.0, 2, 176, 17),
    pinned(6.0, 11),
    unpinned(6.5, "released", 11, 0.5),
    event("closed", 6.5, **CLOSED),
]
"""One job: it loses two of its seven blocks while its tool runs."""


def job_of(*rows: ROW) -> JobView:
    (job,) = job_views("job", rows)
    return job


def write_record(path: Path, **jobs: list[ROW]) -> Path:
    """A file as the server writes it, the jobs one after the other."""
    lines = [json.dumps({"job_id": name, **row}) for name, rows in jobs.items() for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
