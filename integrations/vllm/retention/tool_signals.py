"""Between two turns of a job: what is told of its tools, and what that means for its pin.

In this order: what the client says of its tools, the command read from the reply, Continuum's TTL
for a tool not known. Runs on the engine's main thread; knows nothing of blocks or vLLM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ToolDurations
from agentkv.protocol import Tags, ToolEvent

from ..policy.base import Policy
from ..policy.continuum import tool_name
from ..policy.costs import Prices
from ..policy.jobs import Job
from ..telemetry.counters import Counters
from ..telemetry.event_log import MAX_COMMAND_CHARS, TimestampRecord
from .pin_lifecycle import PinKeeper
from .predictor import Decode, Forecaster, Reply, Ticket

NEXT_TURN_TTL_S = 5.0
"""How long a pin waits once the last tool has finished: an agent that reports its tools sends the
next turn within milliseconds; seconds pass only where it does work of its own in between."""


class PinDecisions:
    """Prices the pins of one engine as more becomes known of what each job runs."""

    def __init__(
        self,
        policy: Policy,
        forecaster: Forecaster | None,
        keeper: PinKeeper,
        prices: Prices,
        counters: Counters,
        record: TimestampRecord,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.awaiting: dict[Ticket, Job] = {}
        """Jobs whose pin waits for a forecast."""
        self._policy = policy
        self._forecaster = forecaster
        self._keeper = keeper
        self._prices = prices
        self._counters = counters
        self._record = record
        self._clock = clock
        self._observations = ToolObservations(policy.learned.durations, forecaster, counters)
        self._tickets = itertools.count()

    def first_ttl(self, num_tokens: int) -> TTL:
        """TTL of a turn that ends now, before anything is known of its tool."""
        return self._policy.undecided_ttl(self._prices.rebuild(num_tokens))

    @property
    def is_final(self) -> bool:
        """Whether the first TTL stands unless the client says more."""
        return self._forecaster is None

    def turn_finished(self, job: Job, request_id: str) -> None:
        """A turn ended and none of the job is live: its reply is to be read, where that helps."""
        self._stop_awaiting(job)
        if self._forecaster is not None:
            self._await(job, request_id)

    def read(self, reply: Reply, decode: Decode) -> None:
        """Have the reply of a finished turn read."""
        assert self._forecaster is not None
        self._forecaster.ask_of_reply(reply, decode)
        self.apply_forecasts()

    def apply_forecasts(self) -> None:
        """Decide by the forecasts that are there; one that nobody awaits any more is dropped."""
        for forecast in self._forecaster.take() if self._forecaster is not None else ():
            job = self.awaiting.get(forecast.ticket)
            if job is not None:
                self._stop_awaiting(job)
                self._decide(job, forecast.command, forecast.prediction, told_by=forecast.told_by)

    def turn_arrived(self, job: Job, tags: Tags, *, is_new: bool) -> None:
        """A turn of the job is here: if it is no retry, the tools before it are over."""
        self._stop_awaiting(job)
        if is_new:
            self._observations.from_next_turn(job, tags, self._clock())
            job.running.clear()

    def tool_signal(self, job: Job, event: ToolEvent) -> bool:
        """The client says what a tool does; False, and counted, if it is not of the last turn."""
        is_taken = event.turn is None or job.last_turn in (None, event.turn)
        command = event.command or event.tool or ""
        self._record.add(
            job.job_id,
            f"tool_{event.state}" if is_taken else "tool_signal_ignored",
            tool=tool_name(command),
            command=(event.command or "")[:MAX_COMMAND_CHARS],
            duration_s=event.duration_s,
        )
        if not is_taken:
            self._counters.add("tool_signals_ignored_total")
        elif event.state == "finished":
            self._tool_finished(job, event, command)
        elif tool_name(command):
            self._tool_started(job, command)
        return is_taken

    def _tool_started(self, job: Job, command: str) -> None:
        commands = job.start_tool(command, self._clock())
        job.tool = tool_name(command)
        if job.live:
            return
        self._stop_awaiting(job)
        if self._forecaster is None:
            self._decide(job, command[:MAX_COMMAND_CHARS], told_by="client")
        else:
            ticket = next(self._tickets)
            self._await(job, ticket)
            self._forecaster.ask_of_command(ticket, commands)
            self.apply_forecasts()

    def _tool_finished(self, job: Job, event: ToolEvent, command: str) -> None:
        self._observations.from_client(job, event)
        is_last = job.finish_tool(command)
        if self._forecaster is not None and is_last and not job.live:
            self._stop_awaiting(job)
            ttl = self._policy.capped(NEXT_TURN_TTL_S, "the tool is done, the next turn is near")
            self._keeper.reprice(job.job_id, ttl, is_from_now=True)

    def _decide(
        self,
        job: Job,
        command: str | None,
        prediction: Prediction | None = None,
        *,
        told_by: str,
    ) -> None:
        decision = self._policy.decide(
            command, self._prices.rebuild(job.context_tokens), prediction
        )
        job.decision = decision
        job.tool = tool_name(decision.command or "") or None
        if self._forecaster is not None:
            self._record.add(job.job_id, "decision", told_by=told_by, **decision.as_event())
        self._keeper.reprice(
            job.job_id, decision.ttl, speed=decision.speed, is_from_now=decision.is_from_now
        )

    def job_closed(self, job: Job, reason: str) -> None:
        """The job is over: released, at its last step, or forgotten."""
        self._stop_awaiting(job)
        if reason == "released":
            self._observations.from_release(job, self._clock())

    def _await(self, job: Job, ticket: Ticket) -> None:
        job.awaited = ticket
        self.awaiting[ticket] = job

    def _stop_awaiting(self, job: Job) -> None:
        if job.awaited is not None:
            self.awaiting.pop(job.awaited, None)
            job.awaited = None


# MERGED: How long a job's tools take, from whatever source says it best: one source for each
# MERGED: turn.
# MERGED: The client's own report comes first, then the duration piggy-backed on the next turn,
# MERGED: then the gap
# MERGED: between a turn's end and the next one's arrival, which holds the agent's own time
# MERGED: too.

MIN_BOUND_S = 1.0
"""A tool cut short sooner than this says nothing about how long it takes."""


class ToolObservations:
    """Feeds durations to Continuum's distributions, by tool, and the predictor, by command."""

    def __init__(
        self, durations: ToolDurations, forecaster: Forecaster | None, counters: Counters
    ) -> None:
        self._durations = durations
        self._forecaster = forecaster
        self._counters = counters

    def from_client(self, job: Job, event: ToolEvent) -> None:
        """The client measured a tool and says so; a bare tool name leaves the command known."""
        if event.duration_s is not None:
            known = job.decision.command if job.decision is not None else None
            text = event.command or event.tool or ""
            command = event.command or known or event.tool
            self._observe(job, tool_name(text), command, event.duration_s, "client")

    def from_next_turn(self, job: Job, tags: Tags, now_s: float) -> None:
        """The next turn is here: take what it carries, else the gap, unless the client told."""
        if job.finished_s is None or job.is_tool_observed:
            return
        command = job.decision.command if job.decision is not None else None
        if tags.last_tool_s is not None:
            tool = tool_name(tags.last_tool) if tags.last_tool else job.tool
            command = tags.last_tool or command
            self._observe(job, tool, command, tags.last_tool_s, "piggyback")
        elif not job.live:
            self._observe(job, job.tool, command, now_s - job.finished_s, "gap")

    def from_release(self, job: Job, now_s: float) -> None:
        """The job is over while tools of it run: they took at least so long.

        Only a release tells so. A lease that runs out does not: the client may have gone away
        right after it said that the tool had started.
        """
        for running in job.running:
            ran_s = now_s - running.started_s
            if self._forecaster is not None and running.command and ran_s > MIN_BOUND_S:
                self._forecaster.observe(running.command, ran_s, is_lower_bound=True)
                self._counters.add("tool_observations_total", "source", "cut_short")
        job.running.clear()

    def _observe(
        self, job: Job, tool: str | None, command: str | None, duration_s: float, source: str
    ) -> None:
        job.is_tool_observed = True
        self._durations.observe(tool or None, duration_s)
        if self._forecaster is not None and command:
            self._forecaster.observe(command, duration_s)
        self._counters.add("tool_observations_total", "source", source)
        self._counters.observe("tool_duration_seconds", duration_s)
