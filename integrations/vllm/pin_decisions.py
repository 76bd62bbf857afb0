"""Between two turns of a job: what is told of its tools, and what that means for its pin.

In this order: what the client says of its tools, the command read from the reply, Continuum's TTL
for a tool not known. Runs on the engine's main thread; knows nothing of blocks or vLLM.
"""

from __future__ import annotations

from collections.abc import Callable

from agentkv.ttl import TTL
from agentkv.wire import Tags, ToolEvent

from .continuum import ContinuumPolicy, tool_name
from .counters import Counters
from .jobs import Job
from .pin_keeper import PinKeeper
from .prefill_fit import PrefillFit
from .record import MAX_COMMAND_CHARS, TimestampRecord
from .tool_observations import ToolObservations

NEXT_TURN_TTL_S = 5.0
"""How long a pin waits once the last tool has finished: an agent that reports its tools sends the
next turn within milliseconds; seconds pass only where it does work of its own in between."""


class PinDecisions:
    """Prices the pins of one engine as more becomes known of what each job runs."""

    def __init__(
        self,
        policy: ContinuumPolicy,
        keeper: PinKeeper,
        prefills: PrefillFit,
        counters: Counters,
        record: TimestampRecord,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.observations = ToolObservations(policy, counters)
        self.unread: dict[str, Job] = {}
        """Jobs whose reply is being read, by its request."""
        self._policy = policy
        self._keeper = keeper
        self._prefills = prefills
        self._counters = counters
        self._record = record
        self._clock = clock

    def first_ttl(self, num_tokens: int) -> TTL:
        """TTL of a turn that ends now, before anything is known of its tool."""
        return self._policy.undecided_ttl(self._prefills.reload.seconds(num_tokens))

    @property
    def is_final(self) -> bool:
        """Whether the first TTL stands unless the client says more."""
        return not self._policy.predicts

    def turn_finished(self, job: Job, request_id: str) -> None:
        """A turn ended and none of the job is live: its reply is to be read, where that helps."""
        self._stop_reading(job)
        if self._policy.predicts:
            job.unread_reply = request_id
            self.unread[request_id] = job

    def reply_read(self, request_id: str, command: str | None) -> None:
        """A reply runs `command`, None: nothing. A reply that nobody waits for is passed over."""
        job = self.unread.get(request_id)
        if job is not None:
            self._stop_reading(job)
            self._decide(job, command, told_by="reply")

    def turn_arrived(self, job: Job, tags: Tags, *, is_new: bool) -> None:
        """A turn of the job is here: if it is no retry, the tools before it are over."""
        self._stop_reading(job)
        if is_new:
            self.observations.from_next_turn(job, tags, self._clock())
            job.running.clear()

    def tool_signal(self, job: Job, event: ToolEvent) -> bool:
        """The client says what a tool does; False, and counted, if it is not of the last turn."""
        is_taken = event.turn is None or job.last_turn in (None, event.turn)
        self._record.add(
            job.job_id,
            f"tool_{event.state}" if is_taken else "tool_signal_ignored",
            tool=tool_name(event.command or event.tool or ""),
            command=(event.command or "")[:MAX_COMMAND_CHARS],
            duration_s=event.duration_s,
        )
        if not is_taken:
            self._counters.add("tool_signals_ignored_total")
        elif event.state == "started":
            self._tool_started(job, self._command_of(event))
        else:
            self._tool_finished(job, event)
        return is_taken

    def _command_of(self, event: ToolEvent) -> str:
        return self._policy.read_part(event.command or event.tool or "")

    def _tool_started(self, job: Job, command: str) -> None:
        if not tool_name(command):
            return
        commands = job.start_tool(command, self._clock())
        if job.live:
            job.tool = tool_name(command)
        else:
            self._stop_reading(job)
            self._decide(job, commands if self._policy.predicts else command, told_by="client")

    def _tool_finished(self, job: Job, event: ToolEvent) -> None:
        self.observations.from_client(job, event)
        is_last = job.finish_tool(self._command_of(event))
        if self._policy.predicts and is_last and not job.live:
            self._stop_reading(job)
            ttl = self._policy.capped(NEXT_TURN_TTL_S, "the tool is done, the next turn is near")
            self._keeper.reprice(job.job_id, ttl, is_from_now=True)

    def _decide(self, job: Job, command: str | None, *, told_by: str) -> None:
        reload_s = self._prefills.reload.seconds(job.context_tokens)
        decision = self._policy.decide(command, reload_s)
        job.decision = decision
        job.tool = tool_name(decision.command or "") or None
        if self._policy.predicts:
            self._record.add(job.job_id, "decision", told_by=told_by, **decision.as_event())
        self._keeper.reprice(
            job.job_id, decision.ttl, speed=decision.speed, is_from_now=decision.is_from_now
        )

    def job_closed(self, job: Job, reason: str) -> None:
        """The job is over: released, at its last step, or forgotten."""
        self._stop_reading(job)
        if reason == "released":
            self.observations.from_release(job, self._clock())

    def _stop_reading(self, job: Job) -> None:
        if job.unread_reply is not None:
            self.unread.pop(job.unread_reply, None)
            job.unread_reply = None
