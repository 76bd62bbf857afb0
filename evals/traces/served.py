"""The turns of a server's event log as an agent's own log would have them.

The log does not say which prompts begin alike, and has nothing of requests that belong to no job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentkv.errors import InputError
from agentkv.integrations.vllm.watch.job_view import Entry, JobView, TurnView

from ..event_log import Record
from .turns import ModelCall, TracedTurn, turns_of


@dataclass(slots=True)
class RunTool:
    """A tool call that the client reported, with the duration that it measured."""

    name: str
    command: str
    started_s: float
    ended_s: float | None = None
    duration_s: float | None = None


def run_tools(entries: Iterable[Entry]) -> list[RunTool]:
    """The tools of a job by its events, in order of their starts as reported."""
    tools: list[RunTool] = []
    for entry in entries:
        name, at_s = entry["event"], float(entry["at_s"])
        command, duration_s = str(entry.get("command") or ""), entry.get("duration_s")
        running = [tool for tool in tools if tool.ended_s is None]
        if name == "tool_started":
            tools.append(RunTool(str(entry.get("tool") or ""), command, at_s))
        elif name == "tool_finished":
            ended = next((each for each in running if each.command == command), None)
            if ended is None and not running:  # the report of its start was lost
                start_s = at_s - float(duration_s or 0.0)
                tools.append(RunTool(str(entry.get("tool") or ""), command, start_s))
            ended = ended or (running or tools[-1:])[0]
            ended.ended_s, ended.duration_s = at_s, duration_s
        elif name == "closed" or (name == "arrival" and not entry.get("retry")):
            # the client's report may have been lost: a new turn says that the tools are over
            for tool in running:
                tool.ended_s = at_s
    return tools


def served_turns(record: Record) -> list[TracedTurn]:
    """Finished turns; retries are left out. Raises InputError for a log without one."""
    jobs = [(job, turns) for job in record.jobs if (turns := _finished(job))]
    if not jobs:
        raise InputError(f"{record.source}: no turn in it that finished")
    jobs.sort(key=lambda found: (found[1][0].arrived_s, found[0].label))
    traced: list[TracedTurn] = []
    for job, turns in jobs:
        # of the parent's id, which may be used again, the life in which the job began
        began_s = turns[0].arrived_s
        lives = [
            other.label
            for other, (first, *_) in jobs
            if job.parent_job_id == other.job_id and first.arrived_s <= began_s
        ]
        nexts_s = [*(turn.arrived_s for turn in turns[1:]), math.inf]
        tools = run_tools(job.entries)
        calls = [_call(turn, next_s, tools) for turn, next_s in zip(turns, nexts_s, strict=True)]
        traced += turns_of(job.label, calls, lives[-1] if lives else None)
    return traced


def _finished(job: JobView) -> list[TurnView]:
    turns = [turn for turn in job.turns if turn.output_tokens is not None and not turn.is_retry]
    return sorted(turns, key=lambda turn: turn.arrived_s)


def _call(turn: TurnView, next_s: float, tools: Sequence[RunTool]) -> ModelCall:
    assert turn.ended_s is not None, "the turn finished"
    is_last = math.isinf(next_s)
    ran = [tool for tool in tools if turn.arrived_s <= tool.started_s < next_s]
    if not ran and turn.command and not is_last:  # only the reply names it
        ran = [RunTool(turn.command, turn.command, turn.ended_s)]
    return ModelCall(
        sent_s=turn.arrived_s,
        ended_s=turn.ended_s,
        prompt_tokens=turn.prompt_tokens,
        output_tokens=turn.output_tokens or 1,
        commands=[tool.command or tool.name for tool in ran],
        tool_s=None if is_last or not ran else _tool_s(ran, next_s),
    )


def _tool_s(tools: Sequence[RunTool], next_s: float) -> float:
    """Seconds of one tool as its client measured them, else from the first start to the last end.

    A tool whose end nobody reported ran until the next turn.
    """
    if len(tools) == 1 and tools[0].duration_s is not None:
        return tools[0].duration_s
    started_s = [tool.started_s for tool in tools]
    ended_s = [next_s if tool.ended_s is None else tool.ended_s for tool in tools]
    return max(ended_s) - min(started_s)
