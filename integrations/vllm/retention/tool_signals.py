"""Between two turns of a job: what is known of its tools, and what that means for its pin.

In order of precedence: what the client reports, the command read from the reply, the policy's TTL
for an unknown tool. Called by RetentionManager on the engine's main thread. A command is kept until
the job's next turn, to learn its duration; events have its key, unless `show_commands` is set.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from agentkv.commands import command_key
from agentkv.commands.blocking import Awaited
from agentkv.durations import Prediction
from agentkv.durations.windows import ToolDurations
from agentkv.events import Decided, ToolEnded, ToolIgnored, ToolMeasured, ToolStarted
from agentkv.policies.base import Policy
from agentkv.policies.continuum import tool_name
from agentkv.policies.jobs import Job, RunningTool
from agentkv.protocol import Tags, ToolEvent
from agentkv.watchers import EventStream

from .costs import RestoreCostModel
from .pins import PinManager
from .predictor import CommandSource, DurationService, Reply, RequestKey, ToolCommand

MAX_COMMAND_CHARS = 512
"""Characters shown of a command; the longest allowed would make events of 16 KiB."""
NEXT_TURN_TTL_S = 5.0
"""TTL once the last tool has finished: an agent that reports its tools sends the next turn within
milliseconds; seconds pass only if it does work of its own in between."""
NO_TOOL_TTL_S = 0.25
"""TTL of an inferred job's pin once its reply is found to call no tool. An agent that could not
read a call says so within milliseconds: 4% of the turns of recorded mini-swe-agent runs."""


class ToolObservations:
    """Feeds tool durations to Continuum's distributions, by tool, and the predictor, by command.

    One source a turn: the client's report, else the duration that the next turn carries, else the
    gap between the turns, which includes the agent's own time.
    """

    def __init__(
        self, durations: ToolDurations, predictor: DurationService, stream: EventStream
    ) -> None:
        self._durations = durations
        self._predictor = predictor
        self._emit = stream.emit

    def from_client(self, job: Job, event: ToolEvent) -> None:
        """Take the client's measurement; a bare tool name leaves the command that was read."""
        if event.duration_s is not None:
            known = job.decision.command if job.decision is not None else None
            tool = tool_name(event.command or event.tool or "")
            command = event.command or known or event.tool
            reached = self._reached(job, command, event.duration_s)
            self._observe(job, tool, command, event.duration_s, "client", reached, event.limit_s)

    def from_next_turn(self, job: Job, tags: Tags, now_s: float) -> None:
        """Take the duration that the next turn carries, else the gap, if the client said none."""
        if job.finished_s is None or job.is_tool_observed:
            return
        command = job.decision.command if job.decision is not None else None
        if tags.last_tool_s is not None:
            tool = tool_name(tags.last_tool) if tags.last_tool else job.tool
            command = tags.last_tool or command
            reached = self._reached(job, command, tags.last_tool_s)
            self._observe(job, tool, command, tags.last_tool_s, "piggyback", reached)
        elif not (job.live or job.has_paused):
            self._observe(job, job.tool, command, now_s - job.finished_s, "gap")

    def _observe(
        self,
        job: Job,
        tool: str | None,
        command: str | None,
        duration_s: float,
        source: str,
        reached: str | None = None,
        limit_s: float | None = None,
    ) -> None:
        job.is_tool_observed = True
        ran = Awaited(command or "", limit_s)
        if limit_s is None and job.decision is not None and job.decision.command == command:
            ran = job.blocking or ran
        if not ran.asks_person:  # else it is the person's time
            self._durations.observe(tool or None, duration_s)
            if command:
                self._predictor.observe(ran, duration_s, job.client)
        self._emit(ToolMeasured, job.job_id, source, duration_s, reached)

    @staticmethod
    def _reached(job: Job, command: str | None, duration_s: float) -> str | None:
        """Return where a measured duration lies in the command's prediction, if it has one."""
        known = job.decision
        if known is None or known.command != command or known.p50_s is None or known.p90_s is None:
            return None
        quantiles = (("to_p50", known.p50_s), ("to_p90", known.p90_s))
        return next((name for name, s in quantiles if duration_s <= s), "over_p90")


class PinDecisions:
    """Reprices the pins of one engine as more becomes known of what each job runs."""

    def __init__(
        self,
        policy: Policy,
        predictor: DurationService,
        pins: PinManager,
        costs: RestoreCostModel,
        stream: EventStream,
        clock: Callable[[], float],
    ) -> None:
        self.awaiting: dict[RequestKey, Job] = {}
        """Jobs whose pin waits for a prediction."""
        self._policy = policy
        self._predictor = predictor
        self._pins = pins
        self._costs = costs
        self._emit = stream.emit
        self._clock = clock
        self._shows_commands = policy.settings.show_commands
        self._observations = ToolObservations(policy.learned.durations, predictor, stream)
        self._keys = itertools.count()

    def read(self, job: Job, request_id: str, reply: Reply) -> None:
        """Have the reply of the job's only turn read, soon or now."""
        self._ask(job, request_id, "reply", reply.tool_command)

    def apply_predictions(self) -> list[Job]:
        """Decide by the answers that have come in; drops those that no pin waits for.

        Returns the inferred jobs whose reply calls no tool: they may be over.
        """
        without_tool = []
        for answer in self._predictor.take():
            job = self.awaiting.get(answer.key)
            if job is None:
                continue
            self._stop_awaiting(job)
            has_no_call = job.is_inferred and answer.command is None
            if has_no_call:
                without_tool.append(job)
            if has_no_call and not job.goes_on_without_call:
                self._hold_from_now(job, NO_TOOL_TTL_S, "the reply calls no tool")
            else:
                prediction = answer.prediction if answer.command else job.next_turn
                shown = self._shown(answer.command or "", answer.command_key)
                self._decide(job, answer.command, shown, guess=prediction, told_by=answer.told_by)
                job.blocking = answer.blocking
        return without_tool

    def turn_arrived(self, job: Job, tags: Tags, now_s: float, *, is_new: bool) -> None:
        """Learn from the tools before a turn, which are over unless the turn is a retry."""
        if job.awaited is not None:
            self._stop_awaiting(job)
        if is_new:
            self._observations.from_next_turn(job, tags, now_s)
            job.running.clear()

    def tool_signal(self, job: Job, event: ToolEvent) -> bool:
        """Take the client's report about a tool; False if it is not of the last turn."""
        is_taken = event.turn is None or job.last_turn in (None, event.turn)
        command = event.command or event.tool or ""
        kind = ToolStarted if event.state == "started" else ToolEnded
        shown = self._shown(event.command or "")
        name = tool_name(command)
        self._emit(kind if is_taken else ToolIgnored, job.job_id, name, shown, event.duration_s)
        if is_taken and event.state == "finished":
            self._tool_finished(job, event, command)
        elif is_taken and name:
            self._tool_started(job, command, event.limit_s)
        return is_taken

    def _tool_started(self, job: Job, command: str, limit_s: float | None) -> None:
        running = job.start_tool(RunningTool(command, self._clock(), limit_s))
        job.tool = tool_name(command)
        if job.live:
            return
        if not self._predictor.predicts:
            self._stop_awaiting(job)
            start, shown = command[:MAX_COMMAND_CHARS], self._shown(command)
            self._decide(job, start, shown, guess=None, told_by="client")
        else:
            calls = [(tool.command, Awaited(tool.command, tool.limit_s)) for tool in running]
            self._ask(job, next(self._keys), "client", lambda: ToolCommand.of(calls))

    def _tool_finished(self, job: Job, event: ToolEvent, command: str) -> None:
        self._observations.from_client(job, event)
        was_running = bool(job.running)
        is_last = job.finish_tool(command)
        if not (self._predictor.predicts and is_last) or job.live:
            return
        self._stop_awaiting(job)
        # Once a turn, and of a tool that was known to run: no client holds a pin by signals alone.
        if was_running and not job.has_had_grace:
            job.has_had_grace = True
            self._hold_from_now(job, NEXT_TURN_TTL_S, "the tool is done, the next turn is near")

    def renew(self, job: Job) -> None:
        """Let the pin last as long again as it was worth: the client says that the job goes on."""
        pin = self._pins.table.get(job.job_id)
        if pin is not None:
            ttl = self._policy.undecided_ttl(self._costs.cost(job.worth_tokens))
            ttl = ttl if job.decision is None else job.decision.ttl
            if pin.expires_s < self._clock() + ttl.seconds:
                self._pins.reprice(pin, ttl, is_from_now=True)

    def sub_agent_goes_on(self, job: Job) -> None:
        """Pin as at first a job whose sub-agent has a turn, or ends one."""
        pin = self._pins.table.get(job.job_id)
        ttl = self._policy.undecided_ttl(self._costs.cost(job.worth_tokens))
        if pin is not None and pin.expires_s < self._clock() + ttl.seconds:
            self._hold_from_now(job, ttl.seconds, "a sub-agent of the job goes on")

    def _hold_from_now(self, job: Job, seconds: float, reason: str) -> None:
        pin = self._pins.table.get(job.job_id)
        if pin is not None:
            self._pins.reprice(pin, self._policy.capped(seconds, reason), is_from_now=True)
            pin.doubtful_s = math.inf

    def _decide(
        self, job: Job, command: str | None, shown: str, guess: Prediction | None, told_by: str
    ) -> None:
        decision = self._policy.decide(command, self._costs.cost(job.worth_tokens), guess)
        job.decision = decision
        job.tool = tool_name(decision.command or "") or None
        job.command_shown = None if decision.command is None else shown
        pin, is_first, num_blocks = self._pins.table.get(job.job_id), False, 0
        if pin is not None:
            num_blocks = len(pin.blocks)
            if decision.speed is not None and not pin.is_decided:
                pin.is_decided = is_first = True
            self._pins.reprice(pin, decision.ttl, is_from_now=decision.is_from_now)
            pin.doubtful_s = pin.pinned_s + decision.doubtful_after_s
        if self._predictor.predicts or job.is_inferred:
            said = told_by, job.command_shown
            self._emit(Decided, job.job_id, pin, decision, *said, is_first, num_blocks)

    def _shown(self, command: str, key: str | None = None) -> str:
        """Return what events and routes show of a command; finding its key costs 0.5 ms."""
        if self._shows_commands:
            return command[:MAX_COMMAND_CHARS]
        return command_key(command) if key is None else key

    def job_closed(self, job: Job) -> None:
        """Drop what is known of a job that is over."""
        self._stop_awaiting(job)
        job.running.clear()

    def _ask(
        self,
        job: Job,
        key: RequestKey,
        told_by: CommandSource,
        read: Callable[[], ToolCommand | None],
    ) -> None:
        """Let the job's pin wait for the answer, and for no other question's."""
        self._stop_awaiting(job)
        job.awaited = key
        self.awaiting[key] = job
        is_awaited = self.awaiting.__contains__
        self._predictor.ask(key, told_by, read, job.client, is_awaited=is_awaited)

    def _stop_awaiting(self, job: Job) -> None:
        if job.awaited is not None:
            self.awaiting.pop(job.awaited, None)
            job.awaited = None
