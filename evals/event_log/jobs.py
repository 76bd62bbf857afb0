"""Puts a job's events together into turns, bubbles, tools and pins.

Events name the job, not the request. Of several turns of a job at once, a start belongs to the
waiting one with its prompt length and an end to the one that started first. A log bounded in memory
may begin in the middle of a job. Times are seconds since the engine started; None has not happened
or was not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .reading import Event, Record

KEPT_ENDS = ("returned",)
"""Ends of a pin that paid: the job's next turn took the blocks over."""
WASTED_ENDS = ("expired", "slow", "forgotten", "pressure")
"""Ends of a pin that held memory in vain: the job did not come back in time."""


@dataclass(slots=True)
class TurnRecord:
    """One request of a job.

    is_due: it had been passed over as often as a first turn may be, and went before all others.
    expected_hit_tokens: tokens of the prompt that repeat what the turn before left in the cache.
    context_before_tokens: tokens in whole blocks that the turn before left; 0 for a first turn.
    lost_tokens: those of `expected_hit_tokens` that were no longer in the cache.
    output_tokens: of a turn that finished; at least that many in logs that do not say.
    command: what the reply runs, as far as a policy read it.
    """

    turn: int | None
    arrived_s: float
    prompt_tokens: int
    is_retry: bool = False
    is_due: bool = False
    started_s: float | None = None
    hit_tokens: int = 0
    expected_hit_tokens: int = 0
    context_before_tokens: int = 0
    lost_tokens: int = 0
    preempted_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    is_aborted: bool = False
    output_tokens: int | None = None
    command: str | None = None

    @property
    def waited_s(self) -> float | None:
        """From arrival to the first step that computes it."""
        return None if self.started_s is None else self.started_s - self.arrived_s

    @property
    def is_continuing(self) -> bool:
        """True if an earlier turn of the job left a context, and this one ran."""
        return self.context_before_tokens > 0 and self.started_s is not None

    @property
    def is_diverged(self) -> bool:
        """True if the prompt repeats less than all of what the turn before left.

        Source: Job.has_diverged in agentkv/policies/jobs.py.
        """
        repeatable = min(self.context_before_tokens, self.prompt_tokens - 1)
        return self.is_continuing and self.expected_hit_tokens < repeatable


class Bubble(NamedTuple):
    """The time between a turn's end and the job's next start: tools first, then the queue."""

    ended_s: float
    arrived_s: float
    started_s: float

    @property
    def seconds(self) -> float:
        return self.started_s - self.ended_s

    @property
    def tool_s(self) -> float:
        """Until the next turn arrived: tools, the agent's own work, the network."""
        return self.arrived_s - self.ended_s

    @property
    def queued_s(self) -> float:
        return self.started_s - self.arrived_s


@dataclass(slots=True)
class PinRecord:
    """The blocks of a finished turn, kept; `end` says why they were given back."""

    pinned_s: float
    blocks: int
    ended_s: float | None = None
    end: str | None = None

    @property
    def block_seconds(self) -> float:
        """Memory held, blocks times seconds; 0 for a pin that has not ended."""
        return 0.0 if self.ended_s is None else self.blocks * (self.ended_s - self.pinned_s)


@dataclass(slots=True)
class ToolRecord:
    """A tool call that the client reported, with the duration that it measured."""

    name: str
    command: str
    started_s: float
    ended_s: float | None = None
    duration_s: float | None = None


@dataclass(slots=True)
class JobRecord:
    """A job from its first event to its last; `life` counts from 1 where an id was used again."""

    job_id: str
    engine: int | None
    first_event_s: float
    ended_s: float
    life: int = 1
    turns: list[TurnRecord] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    pins: list[PinRecord] = field(default_factory=list)
    tools: list[ToolRecord] = field(default_factory=list)
    closed_s: float | None = None
    close_reason: str | None = None
    parent_job_id: str | None = None

    @property
    def label(self) -> str:
        engine = "" if self.engine is None else f" @{self.engine}"
        return self.job_id + engine + (f" ({self.life})" if self.life > 1 else "")

    @property
    def started_s(self) -> float:
        """The first time known of the job, which may lie before the log's first event."""
        begun = [turn.arrived_s for turn in self.turns] + [pin.pinned_s for pin in self.pins]
        return min([self.first_event_s, *begun, *(tool.started_s for tool in self.tools)])


def jobs_of(record: Record) -> list[JobRecord]:
    """All jobs of the log in the order of their first event; an id used after its close is new."""
    jobs = []
    for key, events in record.events.items():
        life, replay = 0, None
        for event in events:
            if replay is None or (replay.job.close_reason and event.name == "arrival"):
                life += 1
                replay = _Replay(JobRecord(key.job_id, key.engine, event.at_s, event.at_s, life))
                jobs.append(replay.job)
            replay.take(event)
    return sorted(jobs, key=lambda job: (job.engine or 0, job.started_s))


class _Replay:
    """Applies one job's events, one by one and in order."""

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self._waiting: list[TurnRecord] = []
        self._running: list[TurnRecord] = []
        self._lost_tokens = 0
        self._context_tokens = 0
        self._idle_since_s: float | None = None

    def take(self, event: Event) -> None:
        """Apply an event; an unknown one is ignored."""
        self.job.ended_s = max(self.job.ended_s, event.at_s)
        if handler := getattr(self, f"_on_{event.name}", None):
            handler(event)

    def _on_arrival(self, event: Event) -> None:
        is_retry = bool(event.details.get("retry"))
        if parent_job_id := event.details.get("parent"):
            self.job.parent_job_id = str(parent_job_id)
        self._add(int(event.details["turn"]), event.at_s, event, is_retry=is_retry)
        if not is_retry:
            # the client's report may have been lost: a new turn says that the tools are over
            self._end_tools(event.at_s)

    def _add(
        self, number: int | None, at_s: float, event: Event, *, is_retry: bool = False
    ) -> None:
        prompt_tokens = int(event.details["prompt_length"])
        turn = TurnRecord(number, at_s, prompt_tokens, is_retry)
        turn.context_before_tokens = self._context_tokens
        self.job.turns.append(turn)
        self._waiting.append(turn)

    def _on_due(self, event: Event) -> None:
        for turn in self._waiting:
            turn.is_due = True

    def _on_evicted(self, event: Event) -> None:
        self._lost_tokens = int(event.details["lost_tokens"])

    def _on_waiting_to_running(self, event: Event) -> None:
        prompt_tokens = int(event.details["prompt_length"])
        if not self._waiting:
            self._add(None, event.at_s - event.details["waited_s"], event)
        same = [turn for turn in self._waiting if turn.prompt_tokens == prompt_tokens]
        turn = (same or self._waiting)[0]
        turn.started_s = event.at_s
        turn.hit_tokens = int(event.details["hit_length"])
        turn.expected_hit_tokens = int(event.details["expected_hit_length"])
        turn.lost_tokens, self._lost_tokens = self._lost_tokens, 0
        if self._idle_since_s is not None:
            arrived_s = max(turn.arrived_s, self._idle_since_s)
            self.job.bubbles.append(Bubble(self._idle_since_s, arrived_s, event.at_s))
        self._idle_since_s = None
        self._waiting.remove(turn)
        self._running.append(turn)

    def _on_preempted(self, event: Event) -> None:
        if self._running:
            self._running[-1].preempted_s.append(event.at_s)

    def _on_resumed(self, event: Event) -> None:
        for turn in self._running:
            if len(turn.preempted_s) > len(turn.resumed_s):
                turn.resumed_s.append(event.at_s)
                return

    def _on_finish(self, event: Event) -> None:
        self._context_tokens = int(event.details["context_length"])
        self._end_turn(event)

    def _end_turn(self, event: Event) -> None:
        ending = self._running or self._waiting
        if not ending:
            return
        turn = ending.pop(0)
        if event.name == "finish":
            # the context is known in whole blocks, and without the last token
            least_tokens = max(1, self._context_tokens - turn.prompt_tokens + 1)
            turn.output_tokens = int(event.details.get("output_length") or least_tokens)
        turn.ended_s, turn.is_aborted = event.at_s, event.name == "aborted"
        if turn.started_s is not None and not self._running:
            self._idle_since_s = event.at_s

    _on_aborted = _end_turn

    def _on_decision(self, event: Event) -> None:
        finished = [turn for turn in self.job.turns if turn.output_tokens is not None]
        if finished and event.details.get("told_by") == "reply":
            finished[-1].command = event.details.get("command")

    def _on_pinned(self, event: Event) -> None:
        self.job.pins.append(PinRecord(event.at_s, int(event.details["blocks"])))

    def _on_unpinned(self, event: Event) -> None:
        if not self.job.pins or self.job.pins[-1].ended_s is not None:
            pinned_s = event.at_s - event.details["held_s"]
            self.job.pins.append(PinRecord(pinned_s, int(event.details["blocks"])))
        pin = self.job.pins[-1]
        pin.ended_s, pin.end = event.at_s, str(event.details.get("reason", "unknown"))

    def _on_tool_started(self, event: Event) -> None:
        name, command = (str(event.details.get(key) or "") for key in ("tool", "command"))
        self.job.tools.append(ToolRecord(name, command, event.at_s))

    def _on_tool_finished(self, event: Event) -> None:
        command = str(event.details.get("command") or "")
        open_tools = [tool for tool in self.job.tools if tool.ended_s is None]
        same = [tool for tool in open_tools if tool.command == command] or open_tools
        if not same:  # the report of its start was lost
            self._on_tool_started(event)
            same = self.job.tools[-1:]
            same[0].started_s -= float(event.details.get("duration_s") or 0.0)
        same[0].ended_s, same[0].duration_s = event.at_s, event.details.get("duration_s")

    def _end_tools(self, at_s: float) -> None:
        for tool in self.job.tools:
            tool.ended_s = at_s if tool.ended_s is None else tool.ended_s

    def _on_closed(self, event: Event) -> None:
        self.job.closed_s, self.job.close_reason = event.at_s, str(event.details.get("reason", ""))
        self._end_tools(event.at_s)
