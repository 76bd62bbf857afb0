"""Trace files and event logs: what real agents ran.

`read_trace` reads bash commands with the wall time they took, for predictors and for drawing tools;
`read_traced_jobs` the turns of whole jobs, as JSON lines, gzipped or not; `read_recorded_jobs` the
jobs of a server's event log: arrivals, tokens, tools and pauses as they were. The log does not say
which prompts begin alike, and has nothing of requests that belong to no job.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import JobView, ToolView, TurnView

from ..event_log import jobs_of, read_record
from ..rows import json_object
from .plans import JobPlan, JobRole, TurnPlan

CENSORED_AT_MOST_S = 3.0
"""Bound behind `censored: true`: the command took no longer, the logged time is a person's."""
MEASURED_TURNS = ("timeout", "inner")
"""Values of `tool_s_from` that are measurements; the others are estimates or constants."""
_DURATION_FIELDS = "command, duration_s[, session, order, censored, is_error, timeout_s]"
_TURN_FIELDS = "job_id, command, tool_s, tool_s_from"
_JOB_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"

Bound = Literal["exact", "lower", "upper"]
"""What a duration is: exact; it ran at least that long (cut by a time-out); at most that long (the
measured time includes a wait for something else)."""
TracedJob = tuple[str, tuple[TurnPlan, ...]]
"""A job's id and its turns."""


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


_Children = Mapping[tuple[str, int], Sequence[JobView]]
"""Jobs by the label of the job that waited for them, and by its turn."""


def is_event_log(path: Path) -> bool:
    """True for a folder, and for a file that begins as an event log or a saved answer does."""
    if path.is_dir():
        return True
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"")
    except (OSError, EOFError, zlib.error):
        return False
    if first.strip() == b"{":  # a saved answer over several lines
        return True
    try:
        fields = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and ("event" in fields or "jobs" in fields)


def read_recorded_jobs(path: Path) -> list[JobPlan]:
    """The log's jobs in the order of their arrivals, the first of which is at 0.0.

    A turn counts if it finished. A sub-agent is part of the turn that waited for it; one that
    nobody waited for is a job by itself. Raises InputError for a log without a finished turn, or
    one that cannot be read.
    """
    records = [job for job in jobs_of(read_record(str(path))) if _turns_of(job)]
    if not records:
        raise InputError(f"{path}: no turn in it that finished")
    records.sort(key=lambda job: (_turns_of(job)[0].arrived_s, job.label))
    children = _children_among(records)
    waited_for = {job.label for group in children.values() for job in group}
    first_s = _turns_of(records[0])[0].arrived_s
    return [_plan(job, children, first_s) for job in records if job.label not in waited_for]


def _turns_of(job: JobView) -> list[TurnView]:
    turns = [turn for turn in job.turns if turn.output_tokens is not None and not turn.is_retry]
    return sorted(turns, key=lambda turn: turn.arrived_s)


def _children_among(records: Sequence[JobView]) -> _Children:
    """Jobs that ran between two turns of their parent."""
    parents = defaultdict(list)
    for job in records:
        parents[job.job_id].append(job)
    children = defaultdict(list)
    for job in records:
        turns = _turns_of(job)
        for parent in parents.get(job.parent_job_id or "", ()):
            for number, (before, after) in enumerate(pairwise(_turns_of(parent))):
                begins_s, ends_s = _ended_s(before), after.arrived_s
                if begins_s <= turns[0].arrived_s and _ended_s(turns[-1]) <= ends_s:
                    children[parent.label, number].append(job)
    return children


def _ended_s(turn: TurnView) -> float:
    assert turn.ended_s is not None, "the turn finished"
    return turn.ended_s


def _plan(job: JobView, children: _Children, zero_s: float, role: JobRole = "agent") -> JobPlan:
    """The job, which arrives as long after `zero_s` as in the log."""
    turns, plans = _turns_of(job), []
    context_tokens = 0
    for number, turn in enumerate(turns):
        # contexts only grow in a replay: where an agent cut its history, one token is added
        added_tokens = max(1, turn.prompt_tokens - context_tokens)
        output_tokens = turn.output_tokens or 1
        context_tokens += added_tokens + output_tokens
        ended_s, waited_for = _ended_s(turn), children.get((job.label, number), ())
        next_s = turns[number + 1].arrived_s if number + 1 < len(turns) else math.inf
        tools = [tool for tool in job.tools if turn.arrived_s <= tool.started_s < next_s]
        if not tools and turn.command and not math.isinf(next_s):  # only the reply names it
            tools = [ToolView(turn.command, turn.command, ended_s)]
        # with children the tool's time was theirs, and will be again
        tool_s = 0.0 if waited_for else _tool_s(tools, next_s)
        idle_s = max([ended_s, *(_ended_s(_turns_of(child)[-1]) for child in waited_for)])
        plans.append(
            TurnPlan(
                added_tokens,
                output_tokens,
                command="\n".join(tool.command or tool.name for tool in tools),
                tool_s=tool_s,
                pause_s=max(0.0, next_s - idle_s - tool_s),
                children=tuple(
                    _plan(child, children, ended_s, "sub-agent") for child in waited_for
                ),
            )
        )
    plans[-1] = plans[-1].as_last()
    return JobPlan(job.label, turns[0].arrived_s - zero_s, tuple(plans), role=role)


def _tool_s(tools: Sequence[ToolView], next_s: float) -> float:
    """Seconds of one tool as its client measured them, else from the first start to the last end.

    A tool whose end nobody reported ran until the next turn.
    """
    if len(tools) == 1 and tools[0].duration_s is not None:
        return tools[0].duration_s
    started_s = [tool.started_s for tool in tools]
    ended_s = [next_s if tool.ended_s is None else tool.ended_s for tool in tools]
    return max(ended_s, default=0.0) - min(started_s, default=0.0)
