"""Trace files: what real agents ran, as JSON lines, gzipped or not.

`read_trace` reads bash commands with the wall time they took, for predictors and for drawing tools;
`read_traced_jobs` reads the turns of whole jobs, for the workload `trace`.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.errors import InputError

from ..rows import json_object
from ..training import Bound
from .plans import TurnPlan

CENSORED_AT_MOST_S = 3.0
"""Bound behind `censored: true`: the command took no longer, the logged time is a person's."""
MEASURED_TURNS = ("timeout", "inner")
"""Values of `tool_s_from` that are measurements; the others are estimates or constants."""
_DURATION_FIELDS = "command, duration_s[, session, order, censored, is_error, timeout_s]"
_TURN_FIELDS = "job_id, command, tool_s, tool_s_from"
_JOB_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"

TracedJob = tuple[str, tuple[TurnPlan, ...]]
"""A job's id and its turns."""


@dataclass(frozen=True, slots=True)
class TracedCommand:
    """One command of a trace; `duration_s` is exact, or a lower or upper bound."""

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


class _JobLine(_TraceLine):
    """Tokens of the whole prompt; command and seconds are null where a turn ran no tool."""

    job_id: str = Field(min_length=1)
    turn: int = Field(ge=0)
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=0)
    command: str | None
    tool_s: float | None = Field(ge=0.0, allow_inf_nan=False)


LineT = TypeVar("LineT", bound=_TraceLine)


def read_trace(path: str | Path) -> Trace:
    """The file's commands in time order; InputError if it is unreadable, misshapen or empty.

    Lines are measured durations (`command, duration_s`, and if known `session, order, censored,
    is_error, timeout_s`) or turns of agent jobs (`job_id, command, tool_s, tool_s_from`), of which
    only the measured ones count. A line without `order` is ordered by its number, as every turn is.
    """
    path = Path(path)
    rows, num_skipped = [], 0
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


def _measured_command(path: Path, number: int, fields: dict[str, Any]) -> TracedCommand:
    line = _parsed(_DurationLine, f"{path}: line {number}", fields, _DURATION_FIELDS)
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
    line = _parsed(_TurnLine, f"{path}: line {number}", fields, _TURN_FIELDS)
    if line.tool_s_from not in MEASURED_TURNS or line.command is None or line.tool_s is None:
        return None
    bound: Bound = "lower" if line.tool_s_from == "timeout" else "exact"
    return TracedCommand(str(path), line.job_id, number, line.command, line.tool_s, bound)


def read_traced_jobs(path: Path) -> list[TracedJob]:
    """The file's jobs in the order of their first lines, each with its turns in order.

    Raises InputError, which names file, line and field, for a line that does not fit.
    """
    jobs: dict[str, dict[int, _JobLine]] = {}
    for number, fields in json_lines(path):
        line = _parsed(_JobLine, f"{path}: line {number}", fields, _JOB_FIELDS)
        turns = jobs.setdefault(line.job_id, {})
        if line.turn in turns:
            raise InputError(
                f"{path}: line {number}: turn {line.turn} of job {line.job_id!r} is there "
                "already; each turn has one line"
            )
        turns[line.turn] = line
    if not jobs:
        raise InputError(f"{path}: no turn in it; a line needs {_JOB_FIELDS}")
    return [
        (job_id, _plans([turns[turn] for turn in sorted(turns)])) for job_id, turns in jobs.items()
    ]


def _plans(lines: Sequence[_JobLine]) -> tuple[TurnPlan, ...]:
    """Each turn adds what brings the context to the recorded prompt.

    Agents drop parts of their history (thinking, long outputs), so a recorded prompt may be
    shorter than what came before it. Contexts only grow here: such a turn adds one token.
    """
    plans = []
    context_tokens = 0
    for line in lines:
        added_tokens = max(1, line.prompt_tokens - context_tokens)
        output_tokens = max(1, line.output_tokens)
        plans.append(TurnPlan(added_tokens, output_tokens, line.command or "", line.tool_s or 0.0))
        context_tokens += added_tokens + output_tokens
    return (*plans[:-1], plans[-1].as_last())


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and object, gzipped or not; InputError for anything else."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json_object(f"{path}: line {number}", line)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read after line {number}: {error}") from error


def _parsed(model: type[LineT], place: str, fields: dict[str, Any], needed: str) -> LineT:
    """The line as a model; InputError names the first field at fault and what is `needed`."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        seen = repr(fields[name]) if name in fields else f"fields {', '.join(fields)}"
        raise InputError(
            f"{place}: {name}: {first['msg']}; seen: {seen[:100]}; a line needs {needed}"
        ) from error
