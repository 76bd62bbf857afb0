"""Reads the event log of a server with the plugin, from a file, a folder or over HTTP.

Knows the shape of the events (integrations/vllm/telemetry/event_log.py), not what they mean.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentkv.client.transport import ServerAPI
from agentkv.errors import InputError

NUMBERS = {
    "arrival": ("turn", "prompt_length"),
    "waiting_to_running": ("prompt_length", "hit_length", "expected_hit_length", "waited_s"),
    "resumed": ("hit_length",),
    "evicted": ("lost_tokens",),
    "finish": ("turn", "context_length"),
    "pinned": ("blocks", "ttl_s"),
    "unpinned": ("blocks", "held_s"),
    "closed": ("turns",),
}
"""Numbers that each event must carry; further events and fields are let through."""
OPTIONAL_NUMBERS = {"tool_finished": ("duration_s",)}
"""Numbers that an event may carry; null is none."""
_FILE_PATTERNS = ("scheduler_timestamps*.jsonl*", "timestamps.json")
"""Names in a server's --run-output-dir and in the folder of a run."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a job, in seconds since its engine started."""

    name: str
    at_s: float
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobKey:
    """A job on one engine: the clocks of two engines do not compare. None: there is only one."""

    job_id: str
    engine: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Every job's events in order; `is_cut` if the last line was incomplete."""

    source: str
    events: Mapping[JobKey, list[Event]]
    is_cut: bool = False


def read_record(source: str, *, api_key: str | None = None) -> Record:
    """The event log of a server (its URL), a file, or the one log in a folder.

    Raises InputError for one that cannot be read, is misshapen or empty, AgentKVServerError for a
    server without an answer.
    """
    if source.startswith(("http://", "https://")):
        answer = ServerAPI(source, api_key=api_key).timestamps()
        record = Record(source, _grouped(_answer_rows(source, answer)))
    else:
        record = _read_file(_file_of(Path(source)))
    if not record.events:
        raise InputError(f"{source}: no event of any job in it")
    return record


def _file_of(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = sorted(file for pattern in _FILE_PATTERNS for file in path.glob(pattern))
    if len(found) != 1:
        seen = ", ".join(file.name for file in found) or "none"
        due = " or ".join(_FILE_PATTERNS)
        raise InputError(f"{path}: needs exactly one {due}, found {seen}; name the file")
    return found[0]


def _read_file(path: Path) -> Record:
    """A saved answer of the server, or lines of events."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read().decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot read this record: {error}") from error
    answer = _parsed(text)
    if isinstance(answer, dict) and "event" not in answer:
        return Record(str(path), _grouped(_answer_rows(str(path), answer)))
    lines = text.splitlines()
    is_cut = bool(lines) and not text.endswith("\n") and _parsed(lines[-1]) is None
    return Record(str(path), _grouped(_file_rows(path, lines[:-1] if is_cut else lines)), is_cut)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


_Row = tuple[JobKey, Event]


def _file_rows(path: Path, lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}: line {number}"
            row = _object(place, _parsed(line))
            yield _checked(place, row.get("job_id"), row)


def _answer_rows(source: str, answer: Mapping[str, Any]) -> Iterator[_Row]:
    for job_id, rows in _object(f"{source}: 'jobs'", answer.get("jobs")).items():
        for number, entry in enumerate(rows if isinstance(rows, list) else [rows], start=1):
            place = f"{source}: job {job_id!r}, event {number}"
            yield _checked(place, job_id, _object(place, entry))


def _object(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{place}: needs a JSON object, got {str(value)[:80]!r}")
    return value


def _checked(place: str, job_id: Any, row: Mapping[str, Any]) -> _Row:
    name: Any = row.get("event")
    for field, value in (("job_id", job_id), ("event", name)):
        if not isinstance(value, str):
            raise InputError(f"{place}: {field} must be a string, got {value!r}")
    optional = [field for field in OPTIONAL_NUMBERS.get(name, ()) if row.get(field) is not None]
    for field in ("at_s", *NUMBERS.get(name, ()), *optional):
        if not _is_number(row.get(field)):
            seen = repr(row[field]) if field in row else "nothing"
            raise InputError(f"{place}: {name}: {field} must be a number, got {seen}")
    engine = row.get("engine")
    details = {key: row[key] for key in row if key not in ("job_id", "event", "at_s", "engine")}
    key = JobKey(job_id, engine if isinstance(engine, int) else None)
    return key, Event(name, float(row["at_s"]), details)


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _grouped(rows: Iterable[_Row]) -> dict[JobKey, list[Event]]:
    grouped: dict[JobKey, list[Event]] = {}
    for key, event in rows:
        grouped.setdefault(key, []).append(event)
    return grouped
