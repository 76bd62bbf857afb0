"""Jobs as they were recorded: a trace file with one line a turn, gzipped or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..traces import TraceError, field_error, json_lines
from .plans import TurnPlan, WorkloadError

_FIELDS = "job_id, turn, prompt_tokens, output_tokens, command, tool_s"

TracedJob = tuple[str, tuple[TurnPlan, ...]]
"""A job's id and its turns."""


class _TurnLine(BaseModel):
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
    jobs: dict[str, dict[int, _TurnLine]] = {}
    try:
        for number, fields in json_lines(path):
            try:
                line = _TurnLine.model_validate(fields)
            except ValidationError as error:
                raise field_error(path, number, error, fields, _FIELDS) from error
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
        raise WorkloadError(f"{path}: no turn in it; a line needs {_FIELDS}")
    return [
        (job_id, _plans([jobs[job_id][turn] for turn in sorted(jobs[job_id])])) for job_id in jobs
    ]


def _plans(lines: Sequence[_TurnLine]) -> tuple[TurnPlan, ...]:
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
