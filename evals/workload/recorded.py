"""Jobs of a server's event log as a workload: arrivals, tokens, tools and pauses as they were.

The log does not say which prompts begin alike, and has nothing of requests that belong to no job.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import JobView, ToolView, TurnView

from ..event_log.reading import jobs_of, read_record
from .plans import JobPlan, JobRole, TurnPlan

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
