"""Agents on a virtual clock: they send turns, run tools and report to the server as clients do.

Called by run.py. Sends exactly what agentkv's client sends: tags with each turn, the start and end
of each tool, a release at the end of the job. A server without the plugin gets none of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agentkv.integrations.vllm.api import engine_side
from agentkv.protocol import (
    CLIENT_FIELD,
    CLIENT_WEIGHT_FIELD,
    MAX_TOOL_CHARS,
    Tags,
    ToolEvent,
    job_key,
)

from ..outcomes import JobOutcome, JobStatus, TurnOutcome
from ..workload.plans import JobPlan, TurnPlan, Workload
from .engine import ContextHashes, LiveTurn
from .fleet import Fleet, Timeline
from .machine import Machine
from .routers import RoutedRequest

NO_COMMAND = 0
"""Token of a reply that runs nothing."""


class Replies:
    """Text of simulated replies: a reply repeats one token, which stands for its command.

    Decoded, it is a bash fence with the command, so a policy that reads replies reads this one as
    it would read a model's.
    """

    def __init__(self) -> None:
        self._commands = [""]
        self._tokens = {"": NO_COMMAND}

    def token_of(self, command: str) -> int:
        """Token of a reply that runs this command."""
        token = self._tokens.setdefault(command, len(self._commands))
        if token == len(self._commands):
            self._commands.append(command)
        return token

    def decode(self, token_ids: list[int]) -> str:
        """Text of (the end of) one reply."""
        command = self._commands[token_ids[-1]] if token_ids else ""
        return f"```bash\n{command}\n```" if command else "Done."


@dataclass(slots=True)
class AgentJob:
    """One job while it is played; `known_tokens` of its context have been computed before."""

    plan: JobPlan
    hashes: ContextHashes
    arrived_s: float
    known_tokens: int
    parent: AgentJob | None = None
    sent_s: float = 0.0
    num_children: int = 0
    """Jobs that its last turn has started and that have not ended."""
    outcomes: list[TurnOutcome] = field(default_factory=list)

    @property
    def turn(self) -> TurnPlan:
        """The turn under way, or the next one."""
        return self.plan.turns[len(self.outcomes)]

    @property
    def client(self) -> str:
        """Whose job it is: for a sub-agent, that of its parent."""
        return self.plan.client if self.parent is None else self.parent.client

    @property
    def key(self) -> str:
        """The id by which the engine knows the job."""
        return job_key(self.client, self.plan.job_id)

    def outcome(self, ended_s: float, status: JobStatus) -> JobOutcome:
        """The job's outcome if it ends now."""
        plan, turns = self.plan, tuple(self.outcomes)
        return JobOutcome(
            plan.job_id,
            self.arrived_s,
            ended_s,
            status,
            turns,
            role=plan.role,
            client=self.client,
        )


class Agents:
    """All jobs of a workload, whose events are on the timeline.

    `has_tags`: clients name their job with each request. `has_plugin`: the server takes tags and
    signals. `on_job_end` gets each job's outcome. `weights` are those of clients, by name, 1 for
    all others; None if the server does not tell clients apart.
    """

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        fleet: Fleet,
        timeline: Timeline,
        replies: Replies,
        *,
        has_tags: bool,
        has_plugin: bool,
        on_job_end: Callable[[JobOutcome], None],
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._workload = workload
        self._machine = machine
        self._fleet = fleet
        self._timeline = timeline
        self._replies = replies
        self._has_tags = has_tags
        self._has_plugin = has_plugin
        self._weights = weights
        self._on_job_end = on_job_end
        self._child_numbers = itertools.count(len(workload.jobs))
        self._computed_prefixes: set[str] = set()
        self._num_ended = 0
        self.num_arrived = 0
        """Jobs that have arrived, without those that others started."""
        self.running: dict[str, AgentJob] = {}
        """Jobs that have arrived and not ended, by id."""
        self._jobs_left = enumerate(workload.jobs)
        if workload.concurrency is None:
            for number, plan in self._jobs_left:
                self._timeline.at(
                    plan.arrival_s, partial(self._arrive, number, plan, plan.arrival_s)
                )
        else:
            self._start_jobs(workload.concurrency, 0.0)

    def turn_ended(self, turn: LiveTurn) -> None:
        """Take the reply of a finished turn: run its tool, start its children, or end the job."""
        job: AgentJob = turn.owner
        assert turn.ended_s is not None
        plan = job.turn
        is_last = len(job.outcomes) + 1 == len(job.plan.turns)
        job.known_tokens = max(turn.known_tokens, turn.computed_tokens)
        self._computed_prefixes.update(prefix.name for prefix in job.plan.prefixes)
        job.outcomes.append(
            TurnOutcome(
                turn=len(job.outcomes),
                sent_s=job.sent_s,
                first_token_s=turn.first_token_s,
                ended_s=turn.ended_s,
                prompt_tokens=turn.prompt_tokens,
                cached_tokens=turn.cached_tokens,
                output_tokens=turn.num_generated,
                tool_s=0.0 if is_last else plan.tool_s,
            )
        )
        if is_last:
            self._end(job, turn.ended_s, "done")
            return
        number = len(job.outcomes)
        self._timeline.at(
            turn.ended_s, partial(self._report_tool, job, ToolEvent("started", turn=number))
        )
        job.num_children = len(plan.children)
        for child in plan.children:
            start_s = turn.ended_s + child.arrival_s
            child_number = next(self._child_numbers)
            self._timeline.at(start_s, partial(self._arrive, child_number, child, start_s, job))
        if not plan.children:
            done_s = turn.ended_s + plan.tool_s
            self._timeline.at(done_s, partial(self._tool_done, job, done_s))

    def _arrive(
        self, number: int, plan: JobPlan, now_s: float, parent: AgentJob | None = None
    ) -> None:
        self.num_arrived += parent is None
        hashes = ContextHashes(number, self._machine.block_tokens, plan.prefixes)
        computed = (p.num_tokens for p in plan.prefixes if p.name in self._computed_prefixes)
        job = AgentJob(plan, hashes, now_s, max(computed, default=0), parent)
        self.running[plan.job_id] = job
        self._send(job, now_s)

    def _start_jobs(self, num_jobs: int, now_s: float) -> None:
        """Start the next jobs of a closed loop, as many as are left."""
        for number, plan in itertools.islice(self._jobs_left, num_jobs):
            self._timeline.at(now_s, partial(self._arrive, number, plan, now_s))

    def _send(self, job: AgentJob, now_s: float) -> None:
        """The request leaves the client; the engine has it `request_s` later."""
        job.sent_s = now_s
        arrival_s = now_s + self._machine.request_s
        self._timeline.at(arrival_s, partial(self._reach_engine, job, arrival_s))

    def _reach_engine(self, job: AgentJob, now_s: float) -> None:
        number = len(job.outcomes)
        plan, prompt_tokens = job.turn, job.plan.prompt_tokens(number)
        num_tokens, limit = prompt_tokens + plan.output_tokens, self._machine.max_model_tokens
        if num_tokens > limit:  # the server's HTTP 400
            error = f"{num_tokens} tokens of context, the server takes {limit}"
            job.outcomes.append(
                TurnOutcome(number, job.sent_s, None, now_s, prompt_tokens, 0, 0, 0.0, error)
            )
            self._end(job, now_s, "failed")
            return
        turn = LiveTurn(
            request_id=f"{job.plan.job_id}#{number + 1}",
            prompt_tokens=prompt_tokens,
            output_tokens=plan.output_tokens,
            reply_token=self._replies.token_of(plan.command),
            hashes=job.hashes,
            known_tokens=job.known_tokens,
            tags=self._fields(job),
            owner=job,
            is_returning=number > 0,
        )
        self._fleet.send(turn, self._routed(job, prompt_tokens))

    def _routed(self, job: AgentJob, prompt_tokens: int) -> RoutedRequest:
        plan = job.plan
        key = job.key if self._has_tags and plan.is_tagged else None
        parent_key = None if job.parent is None else job.parent.key
        return RoutedRequest(plan.job_id, key, parent_key, prompt_tokens, plan.prefixes)

    def _reports(self, job: AgentJob) -> bool:
        """True if the job's client sends tags and signals."""
        return self._has_tags and self._has_plugin and job.plan.is_tagged

    def _fields(self, job: AgentJob) -> dict[str, Any] | None:
        """What reaches the engine with a turn: the client's tags, and who it is."""
        fields = self._tags(job) if self._reports(job) else {}
        if job.client and self._weights is not None:
            fields[CLIENT_FIELD] = job.client
            if job.client in self._weights:
                fields[CLIENT_WEIGHT_FIELD] = self._weights[job.client]
        return fields or None

    def _tags(self, job: AgentJob) -> dict[str, Any]:
        number = len(job.outcomes)
        command = job.plan.turns[number - 1].command if number else ""
        return Tags(
            job_id=job.plan.job_id,
            parent_job_id=None if job.parent is None else job.parent.plan.job_id,
            turn=number + 1,
            last_tool=command[:MAX_TOOL_CHARS] or None,
            last_tool_s=job.outcomes[-1].tool_s if command else None,
        ).as_fields()

    def _tool_done(self, job: AgentJob, now_s: float) -> None:
        outcome = job.outcomes[-1]
        event = ToolEvent("finished", duration_s=outcome.tool_s, turn=len(job.outcomes))
        self._report_tool(job, event)
        pause_s = job.plan.turns[outcome.turn].pause_s
        if pause_s:
            self._timeline.at(now_s + pause_s, partial(self._send, job, now_s + pause_s))
        else:
            self._send(job, now_s)

    def _report_tool(self, job: AgentJob, event: ToolEvent) -> None:
        command = job.plan.turns[len(job.outcomes) - 1].command[:MAX_TOOL_CHARS]
        if self._reports(job) and command:
            self._call_engine("tool", job.key, {**event.as_fields(), "command": command})

    def _end(self, job: AgentJob, now_s: float, status: JobStatus) -> None:
        del self.running[job.plan.job_id]
        if self._reports(job):
            self._timeline.at(now_s, partial(self._call_engine, "release", job.key))
        self._on_job_end(job.outcome(now_s, status))
        if job.parent is not None:
            self._child_ended(job.parent, now_s)
        elif self._workload.concurrency is not None:
            self._num_ended += 1
            per_step = self._workload.jobs_per_step
            if per_step is not None and self._num_ended % per_step == 0:
                self._update_weights()
            if self._workload.steps != "synchronous":
                self._start_jobs(1, now_s)
            elif not self.running:
                self._start_jobs(self._workload.concurrency, now_s)

    def _update_weights(self) -> None:
        """A training step ends: no KV is valid any more, wherever it is. Takes no time."""
        self._fleet.reset()
        self._computed_prefixes.clear()
        for job in self.running.values():
            job.known_tokens = 0

    def _child_ended(self, parent: AgentJob, now_s: float) -> None:
        """Its parent goes on if that was the last: all of it was the time of one tool."""
        parent.num_children -= 1
        if not parent.num_children:
            last = parent.outcomes[-1]
            done_s = max(now_s, last.ended_s + parent.plan.turns[last.turn].tool_s)
            parent.outcomes[-1] = replace(last, tool_s=done_s - last.ended_s)
            self._timeline.at(done_s, partial(self._tool_done, parent, done_s))

    def _call_engine(self, op: str, job_id: str, *args: Any) -> None:
        arguments = [job_id, *args]
        self._fleet.signal(job_id, lambda scheduler: engine_side.call(scheduler, op, arguments))
