"""Reads the event log of a server with the plugin, and adds it up.

The log is a file, the one in a folder, or a running server's. The sums are per job and over all
jobs, as JSON values; a share or a mean of nothing is None.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from agentkv.errors import InputError, reason_of
from agentkv.integrations.vllm.watch.job_view import (
    JobTokens,
    JobView,
    PinView,
    TurnView,
    job_views,
)
from agentkv.policies.settings import Settings
from agentkv.protocol import routing_headers
from agentkv.server.api import COMMAND_TIMEOUT_S, ServerAPI

from .outcomes import mean, quantile
from .rows import RUN_FILE, json_object

NUMBERS = {
    "arrival": ("turn", "prompt_length"),
    "waiting_to_running": ("prompt_length", "hit_length", "expected_hit_length", "waited_s"),
    "reuse": ("turn", "expected_tokens"),
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
SERVER = "server"
"""The event that is of no job: the first line of a server's file."""
_FILE_PATTERNS = ("scheduler_timestamps*.jsonl*", "timestamps.json")
"""Names in a server's --run-output-dir and in the folder of a run."""


class LoggedJob(NamedTuple):
    """A job on one engine: the clocks of two engines do not compare. None: there is only one."""

    job_id: str
    engine: int | None = None


class Record(NamedTuple):
    """Every job's events in order, as they are logged.

    `server` says what the server is: the part of the answer of GET /v1/agentkv/info that the log's
    first line has; empty if the log does not say. `is_cut` if the last line was incomplete.
    """

    source: str
    events: Mapping[LoggedJob, list[Mapping[str, Any]]]
    is_cut: bool = False
    server: Mapping[str, Any] = MappingProxyType({})


def jobs_of(record: Record) -> list[JobView]:
    """All jobs of the log in the order of their first event; an id used after its close is new."""
    jobs = [
        view
        for key, events in record.events.items()
        for view in job_views(key.job_id, events, key.engine)
    ]
    return sorted(jobs, key=lambda job: (job.engine or 0, job.started_s))


def read_record(source: str, *, api_key: str | None = None, near: str | None = None) -> Record:
    """Read the event log of a server (its URL), a file, or the one log in a folder.

    near: the id of a job; of several servers behind a router the one is asked that has it.

    Raises InputError for one that cannot be read, is misshapen or empty, AgentKVServerError for a
    server without an answer.
    """
    answer, text = None, ""
    about: Mapping[str, Any] = {}
    if source.startswith(("http://", "https://")):
        headers = routing_headers(near)
        server = ServerAPI(source, api_key=api_key, headers=headers, timeout_s=COMMAND_TIMEOUT_S)
        answer, about = server.timestamps(), server.info()
    else:
        path = _file_of(Path(source))
        source, text, about = str(path), _text_of(path), _server_of_run(path)
        with suppress(InputError):
            document = json_object(source, text)
            answer = None if "event" in document else document  # a log of one line
    rows, is_cut = _line_rows(source, text) if answer is None else _answer_rows(source, answer)
    events: dict[LoggedJob, list[Mapping[str, Any]]] = {}
    clients: dict[object, set[object]] = {}
    for _, row in rows:
        clients.setdefault(str(row.get("job_id")), set()).add(row.get("client"))
    for place, row in rows:
        if row.get("event") == SERVER:
            about = row
            continue
        job = _job_in(place, row)
        if len(clients[job.job_id]) > 1:
            job = job._replace(job_id=f"{job.job_id} of {row.get('client')}")
        events.setdefault(job, []).append(row)
    if not events:
        raise InputError(f"{source}: no event of any job in it")
    return Record(source, events, is_cut, about)


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


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {reason_of(error)}") from error


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


def _job_in(place: str, row: Mapping[str, Any]) -> LoggedJob:
    """The job of a row; InputError for a row that cannot be read."""
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
    return LoggedJob(row["job_id"], engine if isinstance(engine, int) else None)


def _is_number(value: Any) -> bool:
    """True for a number that a float holds; false for NaN, which compares with nothing."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


PATIENCE_S: float = Settings.model_fields["patience_s"].default
"""The patience of the `agentkv` policy where nothing else is set."""


def totals(jobs: Sequence[JobView]) -> dict[str, Any]:
    """One document over all jobs."""
    turns = [turn for job in jobs for turn in job.turns]
    bubbles = [bubble for job in jobs for bubble in job.bubbles]
    return {
        "jobs": len(jobs),
        **_turn_counts(turns),
        "bubble_s": _spread(sum(bubble) for bubble in bubbles),
        "bubble_tool_s": _spread(bubble.tool_s for bubble in bubbles),
        "bubble_queued_s": _spread(bubble.queued_s for bubble in bubbles),
        **_hits([job.tokens for job in jobs]),
        "ttft_first_s": _spread(_ttfts(t for t in turns if t.turn == 1)),
        "ttft_later_s": _spread(_ttfts(t for t in turns if t.is_later)),
        "queued_first_s": _spread(_waits(t for t in turns if t.turn == 1)),
        "queued_evicted_s": _spread(_waits(filter(_was_evicted, turns))),
        "queued_kept_s": _spread(_waits(t for t in turns if t.is_later and not _was_evicted(t))),
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
        "bubbles_s": [round(sum(bubble), 6) for bubble in job.bubbles],
        "bubble_tools_s": [round(bubble.tool_s, 6) for bubble in job.bubbles],
        "bubble_queued_s": [round(bubble.queued_s, 6) for bubble in job.bubbles],
        **_hits([job.tokens]),
        "queued_evicted_s": [round(s, 6) for s in _waits(filter(_was_evicted, job.turns))],
        **_pins(job.pins),
        "turn_rows": [_turn_row(turn) for turn in job.turns],
    }


_TURN_FIELDS = (
    *("turn", "arrived_s", "started_s", "ended_s", "prompt_tokens", "hit_tokens"),
    *("expected_tokens", "missed", "is_aborted", "is_retry"),
)


def _turn_row(turn: TurnView) -> dict[str, Any]:
    return {
        **{name: getattr(turn, name) for name in _TURN_FIELDS},
        "waited_s": None if turn.waited_s is None else round(turn.waited_s, 6),
        "preemptions": len(turn.preempted_s),
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


_ENDS = {"kept": ("returned",), "wasted": ("expired", "slow", "lease", "forgotten", "pressure")}
"""Ends of a pin that paid, or cost memory in vain; logs of 0.1 say `forgotten` for `lease`."""


def _pins(pins: Sequence[PinView]) -> dict[str, Any]:
    found: dict[str, Any] = {"pins": len(pins)}
    found["pin_ends"] = dict(Counter(pin.end for pin in pins if pin.end is not None))
    for name, ends in _ENDS.items():
        ended = [pin for pin in pins if pin.end in ends]
        cost = sum(pin.blocks * ((pin.ended_s or 0.0) - pin.pinned_s) for pin in ended)
        found |= {f"pins_{name}": len(ended), f"{name}_block_s": round(cost, 6)}
    return found


def _waits(turns: Iterable[TurnView]) -> list[float]:
    return [turn.waited_s for turn in turns if turn.waited_s is not None]


def _ttfts(turns: Iterable[TurnView]) -> list[float]:
    return [turn.ttft_s for turn in turns if turn.ttft_s is not None]


def _spread(values: Iterable[float]) -> dict[str, Any]:
    times_s = list(values)
    shares = {"p50": 0.5, "p90": 0.9, "max": 1.0}
    found = {"mean": mean(times_s)} | {key: quantile(times_s, at) for key, at in shares.items()}
    return {"n": len(times_s)} | {
        key: None if value is None else round(value, 6) for key, value in found.items()
    }


class _StartedTurn(NamedTuple):
    """A turn that began, with the first event of its job."""

    started_s: float
    arrived_s: float
    known_s: float
    engine: int | None
    is_first: bool
    is_due: bool

    def is_passed_by(self, other: _StartedTurn) -> bool:
        """True if the other one, which started before it, is of a later job of its engine."""
        is_later = other.engine == self.engine and other.known_s > self.known_s
        may_pass = not other.is_due and (other.is_first or not self.is_first)
        return is_later and may_pass and other.started_s < self.started_s


def passed_over(jobs: Iterable[JobView], after_s: float) -> dict[str, Any]:
    """Count turns that waited longer than `after_s` and then saw turns of later jobs start.

    A job is later than another of its engine if its first event is; parents and priorities of jobs
    are not in the log. `first` turns are compared with other first turns alone, `continuing` ones
    with all. `most` is the largest number of later turns that one of them saw. Turns that were due,
    which go before all, do not count as later.
    """
    started = sorted(
        (
            _StartedTurn(t.started_s, t.arrived_s, job.started_s, job.engine, t.turn == 1, t.is_due)
            for job in jobs
            for t in job.turns
            if t.started_s is not None
        ),
        key=attrgetter("started_s"),
    )
    starts_s = [turn.started_s for turn in started]
    counts = {}
    for name, is_first in (("continuing", False), ("first", True)):
        counted = [turn for turn in started if turn.is_first is is_first]
        num_later = []
        for turn in counted:
            overdue_s = turn.arrived_s + after_s
            if turn.started_s > overdue_s:
                between = slice(bisect(starts_s, overdue_s), bisect(starts_s, turn.started_s))
                num_later.append(sum(turn.is_passed_by(other) for other in started[between]))
        counts[name] = {
            "after_s": after_s,
            "turns": len(counted),
            "waited_longer": len(num_later),
            "passed_over": sum(count > 0 for count in num_later),
            "most": max(num_later, default=0),
        }
    return counts
