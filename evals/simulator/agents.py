"""Agents on a virtual clock: they send turns, run tools and report to the server as clients do.

Called by run.py. Sends exactly what agentkv's client sends: tags with each turn, the start and end
of each tool, a release at the end of the job. A server without the plugin gets none of it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentkv.protocol import (
    CLIENT_FIELD,
    MAX_TOOL_CHARS,
    JobKey,
    Tags,
    ToolEvent,
)

from ..outcomes import JobOutcome, JobStatus, TurnOutcome
from ..workload.plans import JobPlan, TurnPlan, Workload
from .machine import Machine
from .turns import ContextHashes, LiveTurn

if TYPE_CHECKING:
    from .engine import SimulatedEngine

NO_COMMAND = 0
"""Token of a reply that runs nothing."""


class Timeline:
    """The events to come, in order of their times; those of one time in the order they were set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """Time of the event that is handled now, or was last."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def next_s(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call `action` at this time."""
        heapq.heappush(self._events, (time_s, next(self._numbers), action))

    def handle_next(self) -> None:
        """Go to the next event and handle it."""
        self.now_s, _, action = heapq.heappop(self._events)
        action()


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
        return JobKey(self.client, self.plan.job_id)

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

    `has_tags`: clients name their job with each request. `settings` are those of the server's
    plugin, which tells clients apart; None if it has no plugin, and so takes no
    tags and signals. `on_job_end` gets each job's outcome.
    """

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        engine: SimulatedEngine,
        timeline: Timeline,
        replies: Replies,
        *,
        has_tags: bool,
        settings: Mapping[str, Any] | None,
        on_job_end: Callable[[JobOutcome], None],
    ) -> None:
        self._workload = workload
        self._machine = machine
        self._engine = engine
        self._timeline = timeline
        self._replies = replies
        self._has_tags = has_tags
        self._settings = settings
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
        computed_tokens = max(turn.known_tokens, turn.computed_tokens)
        job.known_tokens = self._machine.reusable_tokens(turn.prompt_tokens, computed_tokens)
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
        if plan.kept_tokens is not None:
            job.hashes.cut(plan.kept_tokens)
            job.known_tokens = min(job.known_tokens, plan.kept_tokens)
        turn = LiveTurn(
            request_id=f"{job.plan.job_id}#{number + 1}",
            prompt_tokens=prompt_tokens,
            output_tokens=plan.output_tokens,
            reply_token=self._replies.token_of(plan.command),
            hashes=job.hashes,
            known_tokens=job.known_tokens,
            tags=self._fields(job),
            owner=job,
        )
        self._engine.send(turn, now_s)

    def _reports(self, job: AgentJob) -> bool:
        """True if the job's client sends tags and signals."""
        return self._has_tags and self._settings is not None and job.plan.is_tagged

    def _fields(self, job: AgentJob) -> dict[str, Any] | None:
        """What reaches the engine with a turn: the client's tags, and who it is."""
        fields = self._tags(job) if self._reports(job) else {}
        if job.client and self._settings is not None:
            fields[CLIENT_FIELD] = job.client
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
            fields = {**event.as_fields(), "command": command}
            self._engine.signal("tool", job.key, fields, now_s=self._timeline.now_s)

    def _end(self, job: AgentJob, now_s: float, status: JobStatus) -> None:
        del self.running[job.plan.job_id]
        if self._reports(job):
            release = partial(self._engine.signal, "release", job.key, now_s=now_s)
            self._timeline.at(now_s, release)
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
        self._engine.reset(self._timeline.now_s)
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
