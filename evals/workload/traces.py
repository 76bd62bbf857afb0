"""Trace files: bash commands of real agents with the wall time they took.

JSON lines, gzipped or not, in either of two shapes: measured durations (`command, duration_s`, and
if known `session, order, censored, is_error, timeout_s`) or the turns of agent jobs (`job_id,
command, tool_s, tool_s_from`), of which only the measured ones count.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.durations.trees import Bound
from agentkv.errors import AgentKVError

from .plans import TurnPlan, WorkloadError

CENSORED_AT_MOST_S = 3.0
"""What `censored: true` says of a command: it took no longer, the logged time is a person's."""
MEASURED_TURNS = ("timeout", "inner")
"""Values of `tool_s_from` that are measurements; the others are estimates or constants."""
_DURATION_FIELDS = "command, duration_s[, session, order, censored, is_error, timeout_s]"
_TURN_FIELDS = "job_id, command, tool_s, tool_s_from"


class TraceError(AgentKVError, ValueError):
    """A trace that cannot be read; the text names file and line, what was seen and what is due."""


@dataclass(frozen=True, slots=True)
class TracedCommand:
    """One command of a trace: it ran `duration_s`, at least so long, or at most so long."""

    trace: str
    session: str
    order: float
    command: str
    duration_s: float
    bound: Bound = "exact"

    def is_over(self, threshold_s: float) -> bool | None:
        """Did it run longer? None if the bound leaves that open."""
        if self.bound == "exact":
            return self.duration_s > threshold_s
        if self.bound == "upper":
            return False if self.duration_s <= threshold_s else None
        return True if self.duration_s >= threshold_s else None


@dataclass(frozen=True, slots=True)
class Trace:
    """One file's commands in time order, and how many of its lines carry no measurement."""

    name: str
    rows: tuple[TracedCommand, ...]
    num_skipped: int


class _DurationLine(BaseModel):
    model_config = ConfigDict(strict=True)

    command: str
    duration_s: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    session: str = ""
    order: float | None = Field(default=None, allow_inf_nan=False)
    censored: bool = False
    is_error: bool = False
    timeout_s: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)


class _TurnLine(BaseModel):
    model_config = ConfigDict(strict=True)

    job_id: str
    command: str | None
    tool_s: float | None = Field(ge=0.0, allow_inf_nan=False)
    tool_s_from: str | None


def read_traces(paths: Sequence[str | Path]) -> list[Trace]:
    """Every file in turn; TraceError for the first that cannot be used."""
    return [read_trace(path) for path in paths]


def read_trace(path: str | Path) -> Trace:
    """The file's commands in time order; TraceError if it is unreadable, misshapen or empty.

    A line without `order` is ordered by its number, as is every turn of a job.
    """
    path = Path(path)
    rows, num_skipped = [], 0
    for number, fields in json_lines(path):
        row = _row(path, number, fields)
        if row is None:
            num_skipped += 1
        else:
            rows.append(row)
    if not rows:
        raise TraceError(
            f"{path}: no measured command in it ({num_skipped} lines without a measurement); "
            f"needed are lines with {_DURATION_FIELDS} or {_TURN_FIELDS}"
        )
    return Trace(str(path), tuple(sorted(rows, key=lambda row: row.order)), num_skipped)


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and object, gzipped or not; TraceError for what is neither."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _json_object(path, number, line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: line {number} is not UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: cannot be read after line {number}: {error}") from error


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: line {number} is not JSON ({error}): {_clip(line)}") from error
    if not isinstance(fields, dict):
        raise TraceError(f"{path}: line {number} is no JSON object: {_clip(line)}")
    return fields


def _row(path: Path, number: int, fields: dict[str, Any]) -> TracedCommand | None:
    needed = _TURN_FIELDS if "tool_s_from" in fields else _DURATION_FIELDS
    try:
        if "tool_s_from" in fields:
            return _measured_turn(path, number, _TurnLine.model_validate(fields))
        return _measured_command(path, number, _DurationLine.model_validate(fields))
    except ValidationError as error:
        raise field_error(path, number, error, fields, needed) from error


def _measured_command(path: Path, number: int, line: _DurationLine) -> TracedCommand:
    duration_s = line.duration_s
    bound: Bound = "exact"
    if line.censored:
        logged_s = CENSORED_AT_MOST_S if duration_s is None else duration_s
        duration_s, bound = min(CENSORED_AT_MOST_S, logged_s), "upper"
    if duration_s is None:
        raise TraceError(
            f"{path}: line {number}: duration_s is null; only a line with censored: true may "
            "leave it out"
        )
    if line.is_error and line.timeout_s is not None and bound == "exact":
        bound = "lower" if duration_s >= line.timeout_s else "exact"
    order = number if line.order is None else line.order
    return TracedCommand(str(path), line.session, order, line.command, duration_s, bound)


def _measured_turn(path: Path, number: int, line: _TurnLine) -> TracedCommand | None:
    if line.tool_s_from not in MEASURED_TURNS or line.command is None or line.tool_s is None:
        return None
    bound: Bound = "lower" if line.tool_s_from == "timeout" else "exact"
    return TracedCommand(str(path), line.job_id, number, line.command, line.tool_s, bound)


def field_error(
    path: Path, number: int, error: ValidationError, fields: dict[str, Any], needed: str
) -> TraceError:
    """What to raise for a line whose fields are not as `needed` says: the first one at fault."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    seen = _clip(repr(fields[name])) if name in fields else f"fields {_clip(', '.join(fields))}"
    return TraceError(
        f"{path}: line {number}: {name}: {first['msg']}; seen: {seen}; a line needs {needed}"
    )


def _clip(text: str, num_chars: int = 100) -> str:
    return text if len(text) <= num_chars else f"{text[:num_chars]}..."


# MERGED: Jobs as they were recorded: a trace file with one line a turn, gzipped or not.

_JOB_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"

TracedJob = tuple[str, tuple[TurnPlan, ...]]
"""A job's id and its turns."""


class _JobLine(BaseModel):
    """Tokens of the whole prompt; command and seconds are null where a turn ran no tool."""

    model_config = ConfigDict(strict=True)

    job_id: str = Field(min_length=1)
    turn: int = Field(ge=0)
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=0)
    command: str | None
    tool_s: float | None = Field(ge=0.0, allow_inf_nan=False)


def read_traced_jobs(path: Path) -> list[TracedJob]:
    """The file's jobs in the order of their first lines, each with its turns in order.

    Raises WorkloadError, which names file, line and field, for a line that does not fit.
    """
    jobs: dict[str, dict[int, _JobLine]] = {}
    try:
        for number, fields in json_lines(path):
            try:
                line = _JobLine.model_validate(fields)
            except ValidationError as error:
                raise field_error(path, number, error, fields, _JOB_FIELDS) from error
            turns = jobs.setdefault(line.job_id, {})
            if line.turn in turns:
                raise TraceError(
                    f"{path}: line {number}: turn {line.turn} of job {line.job_id!r} is there "
                    "already; each turn has one line"
                )
            turns[line.turn] = line
    except TraceError as error:
        raise WorkloadError(str(error)) from error
    if not jobs:
        raise WorkloadError(f"{path}: no turn in it; a line needs {_JOB_FIELDS}")
    return [
        (job_id, _plans([jobs[job_id][turn] for turn in sorted(jobs[job_id])])) for job_id in jobs
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
        is_last = line is lines[-1]
        command = "" if is_last else line.command or ""
        tool_s = 0.0 if is_last else line.tool_s or 0.0
        plans.append(TurnPlan(added_tokens, output_tokens, command, tool_s))
        context_tokens += added_tokens + output_tokens
    return tuple(plans)
