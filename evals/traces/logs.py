"""Reads the logs of agents that `--trace` and `agentkv explain` take, and finds out their kinds.

A folder is read whole: all its logs of any kinds. What else is in it is passed over, as one line on
standard error says.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentkv.errors import InputError

from ..event_log import holds_event_log, read_record
from ..requests import LoggedCall, last_change, messages_of
from ..rows import text_of
from .coding_agents import read_claude_code, read_codex, read_mini_swe_agent
from .served import served_turns
from .spans import read_otlp
from .turns import TracedTurn, jobs_among

OWN, EVENT_LOG = "a line a turn", "agentkv event log"
TURN_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"
_Row = Mapping[str, Any]
_Reader = Callable[[str, Sequence[_Row]], Iterable[TracedTurn]]
_CODEX_ROWS = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_OTHERS: Mapping[str, tuple[Callable[[_Row], bool], _Reader]] = {
    "Claude Code session": (
        lambda row: "sessionId" in row and row.get("type") in {"user", "assistant", "summary"},
        read_claude_code,
    ),
    "Codex rollout": (
        lambda row: row.get("type") in _CODEX_ROWS and isinstance(row.get("payload"), dict),
        read_codex,
    ),
    "mini-swe-agent trajectory": (
        lambda row: str(row.get("trajectory_format", "")).startswith("mini-swe-agent"),
        read_mini_swe_agent,
    ),
    "OpenTelemetry spans (OTLP JSON)": (
        lambda row: isinstance(row.get("resourceSpans"), list),
        read_otlp,
    ),
}
"""Logs of others: how an object of one looks, and its reader, which takes the file's name, too."""


def read_turns(path: Path) -> list[TracedTurn]:
    """All turns of a log or of a folder of logs.

    Raises InputError for one that cannot be read, whose kind is unknown, or that has no turn.
    """
    if not path.is_dir() or holds_event_log(path):
        return _read_file(path)
    files, passed_over = [], []
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and inner.name.removesuffix(".gz").endswith((".json", ".jsonl")):
            try:
                files.append(_read_file(inner))
            except InputError as error:
                passed_over.append(str(error).partition(";")[0])
    if not files:
        last = "".join(f"; last: {why}" for why in passed_over[-1:])
        raise InputError(f"{path}: no log in it that can be read{last}")
    if passed_over:
        more = f" and {len(passed_over) - 1} more" if len(passed_over) > 1 else ""
        print(f"agentkv: passed over: {passed_over[0]}{more}", file=sys.stderr)
    return _distinct(files)


def _distinct(files: Sequence[Sequence[TracedTurn]]) -> list[TracedTurn]:
    """The turns of these files; those that an earlier one has, too, as of a session that was gone
    on with, once. Another job of the same id, as of a second run, gets a number behind it."""
    known: dict[str, list[TracedTurn]] = {}
    for file in files:
        jobs, names = jobs_among(file), {}
        for job_id, turns in jobs.items():
            tries = itertools.chain([job_id], (f"{job_id} ({n})" for n in itertools.count(2)))
            names[job_id] = next(name for name in tries if _is_same(known.get(name, []), turns))
        for job_id, turns in jobs.items():
            before = known.setdefault(names[job_id], [])
            before += [_renamed(turn, names) for turn in turns[len(before) :]]
    return [turn for turns in known.values() for turn in turns]


def _renamed(turn: TracedTurn, names: Mapping[str, str]) -> TracedTurn:
    parent = names.get(turn.parent_job_id or "", turn.parent_job_id)
    return turn.model_copy(update={"job_id": names[turn.job_id], "parent_job_id": parent})


def _is_same(before: Sequence[TracedTurn], turns: Sequence[TracedTurn]) -> bool:
    """True if two logs tell of the same job, as far as both go."""
    return all(
        (one.sent_s, one.prompt_tokens) == (other.sent_s, other.prompt_tokens)
        for one, other in zip(before, turns, strict=False)
    )


def is_event_log(path: Path) -> bool:
    """True for a server's event log: a folder with one, such a file, or a saved answer."""
    if path.is_dir():
        return holds_event_log(path)
    try:
        text = text_of(path)
    except InputError:
        return False
    first = _parsed(text.lstrip().partition("\n")[0])  # a log may be long
    row = first if isinstance(first, dict) else next(iter(_objects(text)), {})
    return "event" in row or ("jobs" in row and "requests" not in row)


def _read_file(path: Path) -> list[TracedTurn]:
    if is_event_log(path):
        return served_turns(read_record(str(path)))
    text = text_of(path)
    rows = _objects(text)
    if rows and {"job_id", "turn"} <= rows[0].keys():
        return _own_turns(path, text)
    found = (kind for kind, (matches, _) in _OTHERS.items() if any(map(matches, rows[:20])))
    kind = next(found, None)
    if kind is None:
        if not text.strip():
            raise InputError(f"{path}: is empty")
        seen = f"fields {', '.join(list(rows[0])[:8])}" if rows else f"{text[:60]!r}"
        raise InputError(
            f"{path}: of no known kind; seen: {seen}; known: "
            f"{', '.join([OWN, EVENT_LOG, *_OTHERS])}; a line a turn needs {TURN_FIELDS}"
        )
    try:
        turns = list(_OTHERS[kind][1](path.name.split(".")[0], rows))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{path}: a {kind} that does not fit: {what}") from error
    if not turns:
        raise InputError(f"{path}: a {kind} without a call of a model")
    return turns


def _own_turns(path: Path, text: str) -> list[TracedTurn]:
    """A line a turn. Raises InputError, which names the line and its field at fault."""
    lines: list[tuple[TracedTurn, LoggedCall]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if line.strip():
                turn, row = TracedTurn.model_validate_json(line), json.loads(line)
                counts = turn.prompt_tokens, turn.output_tokens, turn.kept_tokens
                reply = messages_of({"messages": row.get("reply")})
                lines.append((turn, LoggedCall(*counts, messages_of(row), reply)))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"]))
            raise InputError(
                f"{path}: line {number}: {field}: {first['msg']}; seen: "
                f"{str(first['input'])[:100]}; a line needs {TURN_FIELDS}"
            ) from error
    turns: list[TracedTurn] = []
    calls: dict[str, list[LoggedCall]] = defaultdict(list)
    for turn, call in sorted(lines, key=lambda each: each[0].turn):
        calls[turn.job_id].append(call)
        change = last_change(calls[turn.job_id])
        kept = change.get("diverged_at") if change else turn.kept_tokens
        turns.append(turn.model_copy(update={"change": change, "kept_tokens": kept}))
    return turns


def _objects(text: str) -> list[_Row]:
    """The objects of a document, of a list of them, or of JSON lines; lines that are none are left
    out."""
    document = _parsed(text)
    if document is None:
        document = [_parsed(line) for line in text.splitlines()]
    rows = document if isinstance(document, list) else [document]
    return [row for row in rows if isinstance(row, dict)]


def _parsed(text: str) -> Any:
    """The JSON value of a text; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
