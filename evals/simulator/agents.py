"""Agents on a virtual clock: they send turns, run tools and report to the server as clients do.

Called by run.py. Sends exactly what agentkv's client sends: tags with each turn, the start and end
of each tool, a release at the end of the job. A server without the plugin gets none of it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentkv.integrations.vllm.api import engine_side
from agentkv.protocol import MAX_TOOL_CHARS, Tags, ToolEvent

from ..outcomes import JobOutcome, JobStatus, TurnOutcome
from ..workload.plans import JobPlan, TurnPlan, Workload
from .engine import ContextHashes, LiveTurn, SimulatedEngine
from .machine import Machine

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
    sent_s: float = 0.0
    known_tokens: int = 0
    outcomes: list[TurnOutcome] = field(default_factory=list)

    @property
    def turn(self) -> TurnPlan:
        """The turn under way, or the next one."""
        return self.plan.turns[len(self.outcomes)]

    def outcome(self, ended_s: float, status: JobStatus) -> JobOutcome:
        """The job's outcome if it ends now."""
        return JobOutcome(self.plan.job_id, self.arrived_s, ended_s, status, tuple(self.outcomes))


class Agents:
    """All jobs of a workload, and the events to come; times in seconds from the start of the run.

    `has_plugin` says whether the server takes tags and signals. `on_job_end` gets each job's
    outcome.
    """

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        engine: SimulatedEngine,
        replies: Replies,
        *,
        has_plugin: bool,
        on_job_end: Callable[[JobOutcome], None],
    ) -> None:
        self._machine = machine
        self._engine = engine
        self._replies = replies
        self._has_plugin = has_plugin
        self._on_job_end = on_job_end
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.num_arrived = 0
        self.running: dict[str, AgentJob] = {}
        """Jobs that have arrived and not ended, by id."""
        self._waiting_jobs: Iterator[tuple[int, JobPlan]] = iter(())
        jobs = enumerate(workload.jobs)
        if workload.concurrency is None:
            for number, plan in jobs:
                self._at(plan.arrival_s, partial(self._arrive, number, plan, plan.arrival_s))
        else:
            self._waiting_jobs = jobs
            for _ in range(workload.concurrency):
                self._arrive_next(0.0)

    @property
    def next_event_s(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def handle_events(self, now_s: float) -> None:
        """Handle all events up to now, in order of time."""
        while self._events and self._events[0][0] <= now_s:
            heapq.heappop(self._events)[2]()

    def turn_ended(self, turn: LiveTurn) -> None:
        """Take the reply of a finished turn: run its tool, or end the job."""
        job: AgentJob = turn.owner
        assert turn.ended_s is not None
        plan = job.turn
        is_last = len(job.outcomes) + 1 == len(job.plan.turns)
        job.known_tokens = max(turn.known_tokens, turn.computed_tokens)
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
        done_s = turn.ended_s + plan.tool_s
        number = len(job.outcomes)
        self._at(turn.ended_s, partial(self._report_tool, job, ToolEvent("started", turn=number)))
        self._at(done_s, partial(self._tool_done, job, done_s, number))

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), action))

    def _arrive(self, number: int, plan: JobPlan, now_s: float) -> None:
        self.num_arrived += 1
        job = AgentJob(plan, ContextHashes(number, self._machine.block_tokens), now_s)
        self.running[plan.job_id] = job
        self._send(job, now_s)

    def _arrive_next(self, now_s: float) -> None:
        for number, plan in self._waiting_jobs:
            self._at(now_s, partial(self._arrive, number, plan, now_s))
            return

    def _send(self, job: AgentJob, now_s: float) -> None:
        """The request leaves the client; the engine has it `request_s` later."""
        job.sent_s = now_s
        arrival_s = now_s + self._machine.request_s
        self._at(arrival_s, partial(self._reach_engine, job, arrival_s))

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
        self._engine.add(
            LiveTurn(
                request_id=f"{job.plan.job_id}#{number + 1}",
                prompt_tokens=prompt_tokens,
                output_tokens=plan.output_tokens,
                reply_token=self._replies.token_of(plan.command),
                hashes=job.hashes,
                known_tokens=job.known_tokens,
                tags=self._tags(job) if self._has_plugin else None,
                owner=job,
            )
        )

    def _tags(self, job: AgentJob) -> dict[str, Any]:
        number = len(job.outcomes)
        tool = job.plan.turns[number - 1] if number else None
        has_tool = tool is not None and tool.command != ""
        return Tags(
            job_id=job.plan.job_id,
            turn=number + 1,
            last_tool=tool.command[:MAX_TOOL_CHARS] if tool is not None and has_tool else None,
            last_tool_s=tool.tool_s if tool is not None and has_tool else None,
        ).as_fields()

    def _tool_done(self, job: AgentJob, now_s: float, number: int) -> None:
        duration_s = job.outcomes[-1].tool_s
        self._report_tool(job, ToolEvent("finished", duration_s=duration_s, turn=number))
        self._send(job, now_s)

    def _report_tool(self, job: AgentJob, event: ToolEvent) -> None:
        command = job.plan.turns[len(job.outcomes) - 1].command[:MAX_TOOL_CHARS]
        if self._has_plugin and command:
            self._call_engine("tool", job.plan.job_id, {**event.as_fields(), "command": command})

    def _end(self, job: AgentJob, now_s: float, status: JobStatus) -> None:
        del self.running[job.plan.job_id]
        if self._has_plugin:
            self._at(now_s, partial(self._call_engine, "release", job.plan.job_id))
        self._on_job_end(job.outcome(now_s, status))
        self._arrive_next(now_s)

    def _call_engine(self, op: str, *args: Any) -> None:
        self._engine.deliver(lambda scheduler: engine_side.call(scheduler, op, list(args)))
