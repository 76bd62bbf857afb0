"""One form for the turns of any log, and the jobs that they make.

A reader of a kind of log finds each job's calls of a model; `turns_of` numbers them, `job_plans`
makes jobs: sub-agents inside the turn that waited for them, tools, pauses, prompts that break where
they broke. Knows no format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..requests import LoggedCall, last_change
from ..workload.plans import JobPlan, JobRole, Prefix, TurnPlan


class TracedTurn(BaseModel):
    """One call of a model and what ran after it; a line of the project's own trace files.

    `prompt_tokens` is the whole prompt. `command` and `tool_s` are null where no tool ran.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    job_id: str = Field(min_length=1)
    turn: int = Field(ge=0)
    prompt_tokens: int = Field(ge=1)
    output_tokens: int = Field(ge=0)
    command: str | None
    tool_s: float | None = Field(ge=0.0, allow_inf_nan=False)
    kept_tokens: int | None = Field(default=None, ge=0)
    """Tokens at the prompt's start that the context before began with, too; None: all of it, as far
    as the log tells."""
    change: Mapping[str, Any] | None = None
    """What is first in another way than in the turn before, as `last_change` has it."""
    parent_job_id: str | None = None
    sent_s: float | None = Field(default=None, allow_inf_nan=False)
    """Seconds at which the request was sent, on a clock that all turns of a file share."""
    ended_s: float | None = Field(default=None, allow_inf_nan=False)
    shared_tokens: int | None = Field(default=None, ge=1)
    """Tokens at the start of a first prompt that other jobs of `shares` begin with, too."""
    shares: str | None = None

    @property
    def context_tokens(self) -> int:
        """What it leaves for the next turn to find: its prompt and its reply."""
        return self.prompt_tokens + self.output_tokens


@dataclass(slots=True, kw_only=True)
class ModelCall(LoggedCall):
    """One call of a model while its log is read."""

    sent_s: float | None = None
    ended_s: float | None = None
    commands: list[str] = field(default_factory=list)
    tool_s: float | None = None

    def tool_ended(self, at_s: float) -> None:
        """One of its tools ended; the last one counts."""
        self.tool_s = max(self.tool_s or 0.0, at_s - (self.ended_s or at_s))


def turns_of(
    job_id: str, calls: Iterable[ModelCall], parent_job_id: str | None = None
) -> list[TracedTurn]:
    """The turns of one job's calls, which come in their order.

    By its messages a prompt keeps what stands before the first change. Without them, one that got
    shorter keeps what its server found in its cache; a longer one that missed may have come late:
    it is not known to have broken.
    """
    turns: list[TracedTurn] = []
    known: list[ModelCall] = []
    for call in calls:
        known.append(call)
        change = last_change(known)
        is_shorter = bool(turns) and call.prompt_tokens < turns[-1].context_tokens
        kept = call.cached_tokens if is_shorter and change is None else None
        turn = TracedTurn(
            job_id=job_id,
            turn=len(turns),
            prompt_tokens=call.prompt_tokens,
            output_tokens=call.output_tokens,
            command="\n".join(call.commands) or None,
            tool_s=call.tool_s if call.commands else None,
            kept_tokens=change.get("diverged_at") if change else kept,
            change=change,
            parent_job_id=parent_job_id,
            sent_s=call.sent_s,
            ended_s=call.ended_s,
        )
        turns.append(turn)
    return turns


Jobs = Mapping[str, Sequence[TracedTurn]]
_Children = Mapping[tuple[str, int], Sequence[str]]
"""Ids of jobs by the job that waited for them, and by the number of its turn."""


def jobs_among(turns: Iterable[TracedTurn]) -> dict[str, list[TracedTurn]]:
    """Turns by job, jobs in the order of their first turns, each job's in its own order."""
    jobs: dict[str, list[TracedTurn]] = defaultdict(list)
    for turn in turns:
        jobs[turn.job_id].append(turn)
    return {job_id: sorted(found, key=lambda turn: turn.turn) for job_id, found in jobs.items()}


def job_plans(jobs: Jobs) -> list[JobPlan]:
    """Jobs in the order of their arrivals, the first of which is at 0.0; without times, all are.

    A sub-agent is part of the turn that waited for it; one that nobody waited for is a job by
    itself.
    """
    children = _children_among(jobs)
    waited_for = {job_id for group in children.values() for job_id in group}
    zero_s = min((turns[0].sent_s or 0.0 for turns in jobs.values()), default=0.0)
    plans = [_plan(job_id, jobs, children, zero_s) for job_id in jobs if job_id not in waited_for]
    return sorted(plans, key=lambda plan: plan.arrival_s)


def _children_among(jobs: Jobs) -> _Children:
    """Jobs that ran between two turns of their parent."""
    children = defaultdict(list)
    for job_id, turns in jobs.items():
        begins_s, ends_s = turns[0].sent_s, turns[-1].ended_s
        parent = jobs.get(turns[0].parent_job_id or "", ())
        for number, (before, after) in enumerate(pairwise(parent)):
            if begins_s is None or ends_s is None or before.ended_s is None or after.sent_s is None:
                continue
            if before.ended_s <= begins_s and ends_s <= after.sent_s:
                children[before.job_id, number].append(job_id)
    return children


def _plan(
    job_id: str, jobs: Jobs, children: _Children, zero_s: float, role: JobRole = "agent"
) -> JobPlan:
    """The job; it arrives at its logged time minus `zero_s`."""
    turns, plans = jobs[job_id], []
    context_tokens = 0
    for number, turn in enumerate(turns):
        kept = None if number == 0 else turn.kept_tokens
        if kept is not None and kept >= context_tokens:
            kept = None
        before_tokens = context_tokens if kept is None else kept
        # where a log does not say what an agent cut from its history, one token is added
        added_tokens = max(1, turn.prompt_tokens - before_tokens)
        output_tokens = max(1, turn.output_tokens)
        context_tokens = before_tokens + added_tokens + output_tokens
        waited_for = children.get((job_id, number), ())
        # with children the tool's time was theirs, and will be again
        tool_s = 0.0 if waited_for else turn.tool_s or 0.0
        pause_s = 0.0
        if turn.ended_s is not None and number + 1 < len(turns):
            ends = (jobs[child][-1].ended_s for child in waited_for)
            idle_s = max([turn.ended_s, *(end for end in ends if end is not None)])
            next_s = turns[number + 1].sent_s
            pause_s = 0.0 if next_s is None else max(0.0, next_s - idle_s - tool_s)
        started_s = turn.ended_s or 0.0
        grown = tuple(_plan(child, jobs, children, started_s, "sub-agent") for child in waited_for)
        command = turn.command or ""
        plans.append(
            TurnPlan(added_tokens, output_tokens, command, tool_s, pause_s, grown, kept_tokens=kept)
        )
    plans[-1] = plans[-1].as_last()
    arrival_s = (turns[0].sent_s or zero_s) - zero_s
    return JobPlan(job_id, arrival_s, tuple(plans), _prefixes(turns[0], jobs), role=role)


def _prefixes(first: TracedTurn, jobs: Jobs) -> tuple[Prefix, ...]:
    """Prefixes of a first prompt, from the shortest: one of each length that is shared."""
    if first.shares is None or first.shared_tokens is None:
        return ()
    shared = {turns[0].shared_tokens for turns in jobs.values() if turns[0].shares == first.shares}
    lengths = sorted(length for length in shared if length and length <= first.shared_tokens)
    return tuple(Prefix(f"{first.shares} {length}", length) for length in lengths)
