"""Bash commands of trace files with the wall time they took, for predictors and drawn tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agentkv.errors import InputError

from .formats import first_object, read_turns
from .own import json_lines, parsed

CENSORED_AT_MOST_S = 3.0
"""Bound behind `censored: true`: the command took no longer, the logged time is a person's."""
MEASURED_TURNS = ("timeout", "inner")
"""Values of `tool_s_from` that are measurements; the others are estimates or constants."""
_DURATION_FIELDS = "command, duration_s[, session, order, censored, is_error, timeout_s]"
_MEASURED_FIELDS = {"duration_s", "censored", "tool_s_from"}
_TURN_FIELDS = "job_id, command, tool_s, tool_s_from"

Bound = Literal["exact", "lower", "upper"]
"""What a duration is: exact; it ran at least that long (cut by a time-out); at most that long (the
measured time includes a wait for something else)."""


@dataclass(frozen=True, slots=True)
class TracedCommand:
    """One command of a trace; `bound` says what `duration_s` is."""

    trace: str
    session: str
    order: float
    command: str
    duration_s: float
    bound: Bound = "exact"


@dataclass(frozen=True, slots=True)
class Trace:
    """One file's commands in time order, and how many of its lines carry no measurement."""

    name: str
    rows: tuple[TracedCommand, ...]
    num_skipped: int


class _TraceLine(BaseModel):
    model_config = ConfigDict(strict=True)


class _DurationLine(_TraceLine):
    command: str
    duration_s: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    session: str = ""
    order: float | None = Field(default=None, allow_inf_nan=False)
    censored: bool = False
    is_error: bool = False
    timeout_s: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)


class _TurnLine(_TraceLine):
    job_id: str
    command: str | None
    tool_s: float | None = Field(ge=0.0, allow_inf_nan=False)
    tool_s_from: str | None


def read_trace(path: str | Path) -> Trace:
    """The file's commands in time order; InputError if it is unreadable, misshapen or empty.

    Lines are measured durations (`command, duration_s`, and if known `session, order, censored,
    is_error, timeout_s`) or turns of agent jobs (`job_id, command, tool_s, tool_s_from`), of which
    only the measured ones count. A line without `order` is ordered by its number, as every turn is.
    Of any other log, or folder of logs, it is the tools whose time is in it.
    """
    path = Path(path)
    rows, num_skipped = [], 0
    if path.is_dir() or not _MEASURED_FIELDS & first_object(path).keys():
        return _commands_of_turns(path)
    for number, fields in json_lines(path):
        measured = _measured_turn if "tool_s_from" in fields else _measured_command
        row = measured(path, number, fields)
        if row is None:
            num_skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise InputError(
            f"{path}: no measured command in it ({num_skipped} lines without a measurement); "
            f"needed are lines with {_DURATION_FIELDS} or {_TURN_FIELDS}"
        )
    return Trace(str(path), tuple(sorted(rows, key=lambda row: row.order)), num_skipped)


def _commands_of_turns(path: Path) -> Trace:
    turns = read_turns(path)
    rows = tuple(
        TracedCommand(str(path), turn.job_id, number, turn.command, turn.tool_s)
        for number, turn in enumerate(turns)
        if turn.command is not None and turn.tool_s is not None
    )
    if not rows:
        raise InputError(f"{path}: {len(turns)} turns, and no tool in it whose time is known")
    return Trace(str(path), rows, len(turns) - len(rows))


def _measured_command(path: Path, number: int, fields: dict[str, Any]) -> TracedCommand:
    line = parsed(_DurationLine, f"{path}: line {number}", fields, _DURATION_FIELDS)
    duration_s = line.duration_s
    bound: Bound = "exact"
    if line.censored:
        logged_s = CENSORED_AT_MOST_S if duration_s is None else duration_s
        duration_s, bound = min(CENSORED_AT_MOST_S, logged_s), "upper"
    if duration_s is None:
        raise InputError(
            f"{path}: line {number}: duration_s is null; only a line with censored: true may "
            "leave it out"
        )
    if line.is_error and line.timeout_s is not None and bound == "exact":
        bound = "lower" if duration_s >= line.timeout_s else "exact"
    order = number if line.order is None else line.order
    return TracedCommand(str(path), line.session, order, line.command, duration_s, bound)


def _measured_turn(path: Path, number: int, fields: dict[str, Any]) -> TracedCommand | None:
    line = parsed(_TurnLine, f"{path}: line {number}", fields, _TURN_FIELDS)
    if line.tool_s_from not in MEASURED_TURNS or line.command is None or line.tool_s is None:
        return None
    bound: Bound = "lower" if line.tool_s_from == "timeout" else "exact"
    return TracedCommand(str(path), line.job_id, number, line.command, line.tool_s, bound)
