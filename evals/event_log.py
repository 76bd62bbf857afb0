"""Reads the event log of a server with the plugin, and adds it up.

The log is a file, the one in a folder, or a running server's. The sums are per job and over all
jobs, as JSON values; a share or a mean of nothing is None.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import (
    JobTokens,
    JobView,
    PinView,
    TurnView,
    job_views,
)
from agentkv.protocol import routing_headers
from agentkv.server.api import COMMAND_TIMEOUT_S, ServerAPI

from .outcomes import mean, quantile
from .rows import RUN_FILE, json_object, text_of

SERVER = "server"
"""The event that is of no job: the first line of a server's file."""
_FILE_PATTERNS = ("scheduler_timestamps*.jsonl*", "timestamps.json")
"""Names in a server's --run-output-dir and in the folder of a run."""


class Record(NamedTuple):
    """The jobs of a log, in the order of their first events; an id used after its close is another
    job, and so is one on another engine, whose clock does not compare.

    `server` says what the server is: the part of the answer of GET /v1/agentkv/info that the log's
    first line has; empty if the log does not say. `is_cut` if the last line was incomplete.
    """

    source: str
    jobs: Sequence[JobView]
    is_cut: bool = False
    server: Mapping[str, Any] = MappingProxyType({})


def read_record(source: str, *, api_key: str | None = None, near: str | None = None) -> Record:
    """Read the event log of a server (its URL), a file, or the one log in a folder.

    near: the id of a job; of several servers behind a router the one is asked that has it.

    Raises InputError for one that cannot be read, is misshapen or empty, AgentKVServerError for a
    server without an answer.
    """
    is_cut = False
    about: Mapping[str, Any]
    if source.startswith(("http://", "https://")):
        headers = routing_headers(near)
        server = ServerAPI(source, api_key=api_key, headers=headers, timeout_s=COMMAND_TIMEOUT_S)
        rows, about = _answer_rows(source, server.timestamps()), server.info()
    else:
        path = _file_of(Path(source))
        source, text, about = str(path), text_of(path), _server_of_run(path)
        if (answer := _answer_in(text)) is not None:
            rows = _answer_rows(source, answer)
        else:
            *lines, last = text.split("\n")  # a server ends each with a line feed
            is_cut = bool(last.strip())
            places = ((f"{source}: line {number}", line) for number, line in enumerate(lines, 1))
            rows = [json_object(place, line) for place, line in places if line.strip()]
    about = next((row for row in reversed(rows) if row.get("event") == SERVER), about)
    try:
        jobs = _jobs_of(row for row in rows if row.get("event") != SERVER)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"{source}: an event that does not fit: {what}") from error
    if not jobs:
        raise InputError(f"{source}: no event of any job in it")
    return Record(source, jobs, is_cut, about)


def _jobs_of(rows: Iterable[Mapping[str, Any]]) -> list[JobView]:
    """The jobs; those of several clients with one id are named by the client, too."""
    events: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        events[row["job_id"], row.get("client"), row.get("engine")].append(row)
    clients: dict[str, set[Any]] = defaultdict(set)
    for job_id, client, _ in events:
        clients[job_id].add(client)
    views = [
        view
        for (job_id, client, engine), of_job in events.items()
        for view in job_views(
            f"{job_id} of {client}" if len(clients[job_id]) > 1 else job_id, of_job, engine
        )
    ]
    return sorted(views, key=lambda job: (job.engine or 0, job.started_s))


def holds_event_log(folder: Path) -> bool:
    """True if a log, or more, is in the folder itself."""
    return bool(_logs_in(folder))


def _logs_in(folder: Path) -> list[Path]:
    return sorted(file for pattern in _FILE_PATTERNS for file in folder.glob(pattern))


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = _logs_in(path)
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "none"
        due = " or ".join(_FILE_PATTERNS)
        raise InputError(f"{path}: needs exactly one {due}, found {seen}; name the file")
    return found[0]


def _server_of_run(path: Path) -> Mapping[str, Any]:
    """What a run's file next to the log says of the server; empty without one."""
    run_file = path.with_name(RUN_FILE)
    if not run_file.exists():
        return {}
    metadata = json_object(str(run_file), run_file.read_bytes()).get("metadata") or {}
    return metadata.get("server_info") or {}


def _answer_in(text: str) -> Mapping[str, Any] | None:
    """The answer of GET /v1/agentkv/timestamps that was saved; None for JSON lines."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "event" not in document else None


def _answer_rows(source: str, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [
            {**row, "job_id": job_id} for job_id, rows in answer["jobs"].items() for row in rows
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"{source}: no jobs with lists of events in it") from error


def totals(jobs: Sequence[JobView]) -> dict[str, Any]:
    """One document over all jobs."""
    turns = [turn for job in jobs for turn in job.turns]
    return {
        "jobs": len(jobs),
        **_turn_counts(turns),
        "tools_s": _spread(bubble.tool_s for job in jobs for bubble in job.bubbles),
        **_hits([job.tokens for job in jobs]),
        "ttft_first_s": _spread(t.ttft_s for t in turns if t.turn == 1),
        "ttft_later_s": _spread(t.ttft_s for t in turns if t.is_later),
        "queued_first_s": _spread(t.waited_s for t in turns if t.turn == 1),
        "queued_evicted_s": _spread(t.waited_s for t in turns if _was_evicted(t)),
        "queued_kept_s": _spread(t.waited_s for t in turns if t.is_later and not _was_evicted(t)),
        **_pins([pin for job in jobs for pin in job.pins]),
        "closed": dict(Counter(job.close_reason or "open" for job in jobs)),
    }


def job_row(job: JobView) -> dict[str, Any]:
    """One job: the same counts, and its turns one by one."""
    return {
        "job_id": job.job_id,
        "engine": job.engine,
        "life": job.life,
        "started_s": round(job.started_s, 6),
        "ended_s": round(job.ended_s, 6),
        "close_reason": job.close_reason,
        **_turn_counts(job.turns),
        "tools_s": round(sum(bubble.tool_s for bubble in job.bubbles), 6),
        "queued_s": round(sum(bubble.queued_s for bubble in job.bubbles), 6),
        **_hits([job.tokens]),
        **_pins(job.pins),
        "turn_rows": job.rows(),
    }


def _turn_counts(turns: Sequence[TurnView]) -> dict[str, int]:
    return {
        "turns": len(turns),
        "turns_finished": sum(t.ended_s is not None and not t.is_aborted for t in turns),
        "turns_aborted": sum(turn.is_aborted for turn in turns),
        "turns_evicted": sum(map(_was_evicted, turns)),
        "turns_diverged": sum(turn.missed == "diverged" for turn in turns),
        "preemptions": sum(len(turn.preempted_s) for turn in turns),
    }


def _was_evicted(turn: TurnView) -> bool:
    """Whether its prompt repeats what the cache had lost."""
    return turn.missed not in (None, "diverged")


def _hits(jobs: Sequence[JobTokens]) -> dict[str, Any]:
    """Tokens of later turns: a first turn has nothing of its own to find."""
    prompt_tokens = sum(job.later_prompt_tokens for job in jobs)
    hit_tokens = sum(job.later_hit_tokens for job in jobs)
    recomputed = sum((Counter[str](job.recomputed_tokens) for job in jobs), Counter[str]())
    return {
        "prompt_tokens": prompt_tokens,
        "hit_tokens": hit_tokens,
        "expected_tokens": sum(job.expected_tokens for job in jobs),
        "recomputed_tokens": dict(recomputed),
        "hit_rate": round(hit_tokens / prompt_tokens, 6) if prompt_tokens else None,
    }


_ENDS = {"kept": ("returned",), "wasted": ("expired", "slow", "lease", "pressure")}
"""Ends of a pin that paid, or cost memory in vain."""


def _pins(pins: Sequence[PinView]) -> dict[str, Any]:
    found: dict[str, Any] = {"pins": len(pins)}
    found["pin_ends"] = dict(Counter(pin.end for pin in pins if pin.end is not None))
    for name, ends in _ENDS.items():
        ended = [pin for pin in pins if pin.end in ends]
        cost = sum(pin.blocks * ((pin.ended_s or 0.0) - pin.pinned_s) for pin in ended)
        found |= {f"pins_{name}": len(ended), f"{name}_block_s": round(cost, 6)}
    return found


def _spread(values: Iterable[float | None]) -> dict[str, Any]:
    times_s = [value for value in values if value is not None]
    shares = {"p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {"mean": mean(times_s)} | {key: quantile(times_s, at) for key, at in shares.items()}
    return {"n": len(times_s)} | {
        key: None if value is None else round(value, 6) for key, value in found.items()
    }
