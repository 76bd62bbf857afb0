"""agentkv's own files: a server's event log, and a line a turn.

An event log does not say which prompts begin alike, and has nothing of requests that belong to no
job.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentkv.errors import InputError, reason_of
from agentkv.integrations.vllm.watch.job_view import JobView, ToolView, TurnView

from ..event_log import Record, jobs_of, read_record
from ..rows import json_object
from .turns import TracedTurn

TURN_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"
LineT = TypeVar("LineT", bound=BaseModel)


def read_event_log(path: Path) -> list[TracedTurn]:
    """The turns of a log's file or folder; InputError for one that cannot be read."""
    return logged_turns(read_record(str(path)))


def logged_turns(record: Record) -> list[TracedTurn]:
    """Finished turns; retries are left out. Raises InputError for a log without one."""
    records = [job for job in jobs_of(record) if _turns_of(job)]
    if not records:
        raise InputError(f"{record.source}: no turn in it that finished")
    records.sort(key=lambda job: (_turns_of(job)[0].arrived_s, job.label))
    return [turn for job in records for turn in _traced(job, records)]


def _turns_of(job: JobView) -> list[TurnView]:
    turns = [turn for turn in job.turns if turn.output_tokens is not None and not turn.is_retry]
    return sorted(turns, key=lambda turn: turn.arrived_s)


def _traced(job: JobView, records: Sequence[JobView]) -> Iterator[TracedTurn]:
    turns = _turns_of(job)
    parent = _parent_label(job, records)
    for number, turn in enumerate(turns):
        assert turn.ended_s is not None, "the turn finished"
        next_s = turns[number + 1].arrived_s if number + 1 < len(turns) else math.inf
        tools = [tool for tool in job.tools if turn.arrived_s <= tool.started_s < next_s]
        if not tools and turn.command and not math.isinf(next_s):  # only the reply names it
            tools = [ToolView(turn.command, turn.command, turn.ended_s)]
        is_last = math.isinf(next_s)
        yield TracedTurn(
            job_id=job.label,
            turn=number,
            prompt_tokens=turn.prompt_tokens,
            output_tokens=turn.output_tokens or 1,
            command="\n".join(tool.command or tool.name for tool in tools) or None,
            tool_s=None if is_last or not tools else _tool_s(tools, next_s),
            parent_job_id=parent,
            sent_s=turn.arrived_s,
            ended_s=turn.ended_s,
        )


def _parent_label(job: JobView, records: Sequence[JobView]) -> str | None:
    """Label of the parent's life in which the job began: an id may be used again."""
    began_s = _turns_of(job)[0].arrived_s
    lives = [one for one in records if job.parent_job_id and one.job_id == job.parent_job_id]
    before = [one for one in lives if _turns_of(one)[0].arrived_s <= began_s]
    return before[-1].label if before else None


def _tool_s(tools: Sequence[ToolView], next_s: float) -> float:
    """Seconds of one tool as its client measured them, else from the first start to the last end.

    A tool whose end nobody reported ran until the next turn.
    """
    if len(tools) == 1 and tools[0].duration_s is not None:
        return tools[0].duration_s
    started_s = [tool.started_s for tool in tools]
    ended_s = [next_s if tool.ended_s is None else tool.ended_s for tool in tools]
    return max(ended_s) - min(started_s)


def read_own_turns(path: Path) -> list[TracedTurn]:
    """A line a turn. Raises InputError, which names the line and its field at fault."""
    seen: set[tuple[str, int]] = set()
    turns = []
    for number, fields in json_lines(path):
        turn = parsed(TracedTurn, f"{path}: line {number}", fields, TURN_FIELDS)
        if (turn.job_id, turn.turn) in seen:
            raise InputError(
                f"{path}: line {number}: turn {turn.turn} of job {turn.job_id!r} is there "
                "already; each turn has one line"
            )
        seen.add((turn.job_id, turn.turn))
        turns.append(turn)
    return turns


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line's number and object, gzipped or not; InputError for anything else."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, json_object(f"{path}: line {number}", line)
    except (OSError, EOFError, zlib.error) as error:
        where = f" after line {number}" if number else ""
        raise InputError(f"{path}: {reason_of(error)}{where}") from error


def parsed(model: type[LineT], place: str, fields: dict[str, Any], needed: str) -> LineT:
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
