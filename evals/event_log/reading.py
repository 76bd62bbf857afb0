"""Reads the event log of a server with the plugin, from a file, a folder or over HTTP.

Knows the shape of the events (integrations/vllm/watch/log.py), not what they mean.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentkv.client.transport import COMMAND_TIMEOUT_S, ServerAPI
from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import JobView, job_views

from ..rows import json_object

NUMBERS = {
    "arrival": ("turn", "prompt_length"),
    "waiting_to_running": ("prompt_length", "hit_length", "expected_hit_length", "waited_s"),
    "reuse": ("turn", "expected_tokens", "kept_tokens"),
    "resumed": ("hit_length",),
    "evicted": ("lost_tokens",),
    "finish": ("turn", "context_length"),
    "pinned": ("blocks", "ttl_s"),
    "unpinned": ("blocks", "held_s"),
    "closed": ("turns",),
}
"""Numbers that each event must carry; further events and fields are let through."""
OPTIONAL_NUMBERS = {"tool_finished": ("duration_s",), "finish": ("output_length",)}
"""Numbers that an event may carry; null is none."""
_FILE_PATTERNS = ("scheduler_timestamps*.jsonl*", "timestamps.json")
"""Names in a server's --run-output-dir and in the folder of a run."""


class Event(NamedTuple):
    """One thing that happened to a job, in seconds since its engine started."""

    name: str
    at_s: float
    details: Mapping[str, Any]


class LoggedJob(NamedTuple):
    """A job on one engine: the clocks of two engines do not compare. None: there is only one."""

    job_id: str
    engine: int | None = None


class Record(NamedTuple):
    """Every job's events in order; `is_cut` if the last line was incomplete."""

    source: str
    events: Mapping[LoggedJob, list[Event]]
    is_cut: bool = False


def jobs_of(record: Record) -> list[JobView]:
    """All jobs of the log in the order of their first event; an id used after its close is new."""
    jobs = [
        view
        for key, events in record.events.items()
        for view in job_views(
            key.job_id,
            ({**event.details, "event": event.name, "at_s": event.at_s} for event in events),
            key.engine,
        )
    ]
    return sorted(jobs, key=lambda job: (job.engine or 0, job.started_s))


def read_record(source: str, *, api_key: str | None = None) -> Record:
    """Read the event log of a server (its URL), a file, or the one log in a folder.

    Raises InputError for one that cannot be read, is misshapen or empty, AgentKVServerError for a
    server without an answer.
    """
    answer, text = None, ""
    if source.startswith(("http://", "https://")):
        server = ServerAPI(source, api_key=api_key, timeout_s=COMMAND_TIMEOUT_S)
        answer = server.timestamps()
    else:
        path = _file_of(Path(source))
        source, text = str(path), _text_of(path)
        with suppress(InputError):
            document = json_object(source, text)
            answer = None if "event" in document else document  # a log of one line
    rows, is_cut = _line_rows(source, text) if answer is None else _answer_rows(source, answer)
    events: dict[LoggedJob, list[Event]] = {}
    for place, row in rows:
        key, event = _checked(place, row)
        events.setdefault(key, []).append(event)
    if not events:
        raise InputError(f"{source}: no event of any job in it")
    return Record(source, events, is_cut)


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(file for pattern in _FILE_PATTERNS for file in path.glob(pattern))
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "none"
        due = " or ".join(_FILE_PATTERNS)
        raise InputError(f"{path}: needs exactly one {due}, found {seen}; name the file")
    return found[0]


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read this record: {error}") from error


_Rows = list[tuple[str, Mapping[str, Any]]]
"""Places for messages, and rows with the id of their job."""


def _line_rows(source: str, text: str) -> tuple[_Rows, bool]:
    """The rows, and whether a last line without its line feed is incomplete."""
    rows: _Rows = []
    *lines, last = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{source}: line {number}"
            rows.append((place, json_object(place, line)))
    with suppress(InputError):
        rows.append((f"{source}: last line", json_object(source, last)))
        last = ""
    return rows, bool(last.strip())


def _answer_rows(source: str, answer: Mapping[str, Any]) -> tuple[_Rows, bool]:
    rows: _Rows = []
    for job_id, events in _object(f"{source}: 'jobs'", answer.get("jobs")).items():
        for number, row in enumerate(events if isinstance(events, list) else [events], start=1):
            place = f"{source}: job {job_id!r}, event {number}"
            rows.append((place, {**_object(place, row), "job_id": job_id}))
    return rows, False


def _object(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: needs a JSON object, got {str(value)[:80]!r}")
    return value


def _checked(place: str, row: Mapping[str, Any]) -> tuple[LoggedJob, Event]:
    for field in ("job_id", "event"):
        if not isinstance(row.get(field), str):
            raise InputError(f"{place}: {field} must be a string, got {row.get(field)!r}")
    name, engine = row["event"], row.get("engine")
    optional = [field for field in OPTIONAL_NUMBERS.get(name, ()) if row.get(field) is not None]
    for field in ("at_s", *NUMBERS.get(name, ()), *optional):
        if not _is_number(row.get(field)):
            seen = repr(row[field]) if field in row else "nothing"
            raise InputError(f"{place}: {name}: {field} must be a number, got {seen}")
    if row.get("miss") is not None:
        miss = _object(f"{place}: {name}: miss", row["miss"])
        if not _is_number(miss.get("tokens")) or not {"reason", "why"} <= miss.keys():
            raise InputError(f"{place}: {name}: miss must have tokens, reason and why: {miss}")
    key = LoggedJob(row["job_id"], engine if isinstance(engine, int) else None)
    return key, Event(name, float(row["at_s"]), row)


def _is_number(value: Any) -> bool:
    """True for a number that a float holds; false for NaN, which compares with nothing."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max
