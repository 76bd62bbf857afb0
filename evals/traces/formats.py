"""Reads the logs of agents that `--trace` and `agentkv record` take, and finds out their kinds.

A folder is read whole: all its logs of any kinds. What else is in it is passed over, as one line on
standard error says.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentkv.errors import InputError, reason_of

from ..event_log import holds_event_log
from . import claude_code, codex, mini_swe_agent, spans
from .own import TURN_FIELDS, read_event_log, read_own_turns
from .turns import TracedTurn, jobs_among

SUFFIXES = (".json", ".jsonl")
"""What logs end with in a folder, `.gz` behind it or not."""
_NAMED = 3
"""Files passed over that are named; the others are counted."""
_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of log: how a user calls it, how its first object looks, and its reader."""

    name: str
    matches: Callable[[_Row], bool]
    read: Callable[[str, Sequence[_Row]], Iterator[TracedTurn]]


FORMATS = (
    Format("Claude Code session", claude_code.is_claude_code, claude_code.read_claude_code),
    Format("Codex rollout", codex.is_codex, codex.read_codex),
    Format(
        "mini-swe-agent trajectory",
        mini_swe_agent.is_mini_swe_agent,
        mini_swe_agent.read_mini_swe_agent,
    ),
    Format("OpenTelemetry spans (OTLP JSON)", spans.is_otlp, spans.read_otlp),
)
OWN = "a line a turn"
EVENT_LOG = "agentkv event log"
NAMES = (OWN, EVENT_LOG, *(one.name for one in FORMATS))


@dataclass(frozen=True, slots=True)
class TracedFile:
    """The turns of one log, and the name of its kind."""

    path: Path
    kind: str
    turns: Sequence[TracedTurn]


def read_turns(path: Path) -> list[TracedTurn]:
    """All turns of a log or of a folder of logs.

    Raises InputError for one that cannot be read, whose kind is unknown, or that has no turn.
    """
    return [turn for file in read_files(path) for turn in file.turns]


def read_files(path: Path) -> list[TracedFile]:
    """The logs at a path, each with its turns; errors as of `read_turns`."""
    if not path.is_dir():
        return [_read_file(path)]
    if holds_event_log(path):
        return [TracedFile(path, EVENT_LOG, read_event_log(path))]
    files, passed_over = [], {}
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and inner.name.removesuffix(".gz").endswith(SUFFIXES):
            try:
                files.append(_read_file(inner))
            except InputError as error:
                passed_over[inner] = str(error).removeprefix(f"{inner}: ")
    if not files:
        last = "".join(f"; last: {inner}: {why}" for inner, why in [*passed_over.items()][-1:])
        raise InputError(f"{path}: no log in it that can be read{last}")
    files = _distinct(files)
    passed_over |= {file.path: "a copy of another" for file in files if not file.turns}
    if passed_over:
        reasons = [
            f"{inner.relative_to(path)} ({why.partition(';')[0]})"
            for inner, why in [*passed_over.items()][:_NAMED]
        ]
        more = f" and {len(passed_over) - _NAMED} more" if len(passed_over) > _NAMED else ""
        print(f"agentkv: {path}: passed over: {', '.join(reasons)}{more}", file=sys.stderr)
    return [file for file in files if file.turns]


def _distinct(files: Sequence[TracedFile]) -> list[TracedFile]:
    """The files, each without the turns that an earlier one has, too; another job of the same id,
    as of a second run, gets a number behind it."""
    known: dict[str, list[TracedTurn]] = {}
    found = []
    for file in files:
        names: dict[str | None, str] = {}
        new: list[TracedTurn] = []
        for job_id, turns in jobs_among(file.turns).items():
            name, number = job_id, 1
            while not _is_same(known.get(name, []), turns):
                number += 1
                name = f"{job_id} ({number})"
            names[job_id], before = name, known.setdefault(name, [])
            more = [turn for turn in turns if not before or turn.turn > before[-1].turn]
            before += more
            new += more
        for number, turn in enumerate(new):
            parent = names.get(turn.parent_job_id, turn.parent_job_id)
            renamed = {"job_id": names[turn.job_id], "parent_job_id": parent}
            new[number] = turn.model_copy(update=renamed)
        found.append(replace(file, turns=new))
    return found


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
        return _is_event_log_row(first_object(path))
    except InputError:
        return False


def _is_event_log_row(row: _Row) -> bool:
    return "event" in row or ("jobs" in row and "requests" not in row)


def _read_file(path: Path) -> TracedFile:
    first = first_object(path)
    if _is_event_log_row(first):
        return TracedFile(path, EVENT_LOG, read_event_log(path))
    if "job_id" in first and "turn" in first:
        return TracedFile(path, OWN, read_own_turns(path))
    rows = _objects(path)
    kind = next((one for one in FORMATS if any(map(one.matches, rows[:20]))), None)
    if kind is None:
        text = _text(path)
        if not text.strip():
            raise InputError(f"{path}: is empty")
        seen = f"fields {', '.join(list(first)[:8])}" if first else f"{text.splitlines()[0][:60]!r}"
        raise InputError(
            f"{path}: of no known kind; seen: {seen}; known: {', '.join(NAMES)}; a line a turn "
            f"needs {TURN_FIELDS}"
        )
    try:
        turns = list(kind.read(path.name.split(".")[0], rows))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{path}: a {kind.name} that does not fit: {what}") from error
    if not turns:
        raise InputError(f"{path}: a {kind.name} without a call of a model")
    return TracedFile(path, kind.name, turns)


def _text(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {reason_of(error)}") from error


def _objects(path: Path) -> list[_Row]:
    """The objects of a document, of a list of them, or of JSON lines; lines that are none are left
    out."""
    text = _text(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
        document = found
    rows = document if isinstance(document, list) else [document]
    return [row for row in rows if isinstance(row, dict)]


def first_object(path: Path) -> _Row:
    """The first line's object, else the first of the whole file; {} if there is none."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            first = json.loads(next((line for line in file if line.strip()), b""))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError):
        first = None
    return first if isinstance(first, dict) else next(iter(_objects(path)), {})
