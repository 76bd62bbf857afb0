"""Reads the logs of agents that `--trace` and `agentkv record` take, and finds out their kinds.

A folder is read whole: all its logs of any kinds. What else is in it is passed over, as one line on
standard error says.
"""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentkv.errors import InputError, reason_of

from ..event_log import holds_event_log, read_record
from ..rows import json_object
from . import claude_code, codex, mini_swe_agent, spans
from .served import served_turns
from .turns import TracedTurn, jobs_among

OWN, EVENT_LOG = "a line a turn", "agentkv event log"
TURN_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"
_Row = Mapping[str, Any]
_Reader = Callable[[str, Sequence[_Row]], Iterable[TracedTurn]]
_OTHERS: Mapping[str, tuple[Callable[[_Row], bool], _Reader]] = {
    "Claude Code session": (claude_code.is_claude_code, claude_code.read_claude_code),
    "Codex rollout": (codex.is_codex, codex.read_codex),
    "mini-swe-agent trajectory": (
        mini_swe_agent.is_mini_swe_agent,
        mini_swe_agent.read_mini_swe_agent,
    ),
    "OpenTelemetry spans (OTLP JSON)": (spans.is_otlp, spans.read_otlp),
}
"""Logs of others: how an object of one looks, and its reader, which takes the file's name, too."""
_NUM_NAMED = 3
"""Files passed over that are named; the others are counted."""


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
    if not path.is_dir() or holds_event_log(path):
        return [_read_file(path)]
    files, passed_over = [], {}
    for inner in sorted(path.rglob("*")):
        if inner.is_file() and inner.name.removesuffix(".gz").endswith((".json", ".jsonl")):
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
            for inner, why in [*passed_over.items()][:_NUM_NAMED]
        ]
        num_more = len(passed_over) - _NUM_NAMED
        more = f" and {num_more} more" if num_more > 0 else ""
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
            more = turns[len(before) :]
            before += more
            new += more
        renamed = [
            turn.model_copy(
                update={
                    "job_id": names[turn.job_id],
                    "parent_job_id": names.get(turn.parent_job_id, turn.parent_job_id),
                }
            )
            for turn in new
        ]
        found.append(replace(file, turns=renamed))
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
        row = first_object(path)
    except InputError:
        return False
    return "event" in row or ("jobs" in row and "requests" not in row)


def _read_file(path: Path) -> TracedFile:
    if is_event_log(path):
        return TracedFile(path, EVENT_LOG, served_turns(read_record(str(path))))
    text = _text(path)
    rows = _objects(text)
    if rows and {"job_id", "turn"} <= rows[0].keys():
        return TracedFile(path, OWN, _own_turns(path, text))
    found = (kind for kind, (matches, _) in _OTHERS.items() if any(map(matches, rows[:20])))
    kind = next(found, None)
    if kind is None:
        if not text.strip():
            raise InputError(f"{path}: is empty")
        seen = f"{text.splitlines()[0][:60]!r}"
        if rows:
            seen = f"fields {', '.join(list(rows[0])[:8])}"
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
    return TracedFile(path, kind, turns)


def _own_turns(path: Path, text: str) -> list[TracedTurn]:
    """A line a turn. Raises InputError, which names the line and its field at fault."""
    turns: dict[tuple[str, int], TracedTurn] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        fields = json_object(place, line)
        try:
            turn = TracedTurn.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            seen = repr(fields[name]) if name in fields else f"fields {', '.join(fields)}"
            raise InputError(
                f"{place}: {name}: {first['msg']}; seen: {seen[:100]}; a line needs {TURN_FIELDS}"
            ) from error
        if turns.setdefault((turn.job_id, turn.turn), turn) is not turn:
            raise InputError(
                f"{place}: turn {turn.turn} of job {turn.job_id!r} is there already; each turn has "
                "one line"
            )
    return list(turns.values())


def _text(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read().decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: {reason_of(error)}") from error


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


def first_object(path: Path) -> _Row:
    """The first line's object, else the first of the whole file; {} if there is none."""
    text = _text(path)
    first = _parsed(text.lstrip().partition("\n")[0])
    return first if isinstance(first, dict) else next(iter(_objects(text)), {})
