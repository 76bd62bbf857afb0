"""What happens to a job, as typed events: one class for each thing that retention announces.

Watchers take them (see agentkv.watchers); `logged` says what the event log shows of each.
Events hold the job, turn or pin as they are, live: a watcher must not change them, nor keep them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, dataclass_transform

from agentkv.guard import Fault
from agentkv.listeners import FreeReason
from agentkv.policies.jobs import Context, Decision, Job, Prompt, Turn
from agentkv.policies.pins import Pin, PinEnd
from agentkv.protocol import JobKey, Tags


@dataclass_transform(frozen_default=True)
class Event:
    """Something that has happened in the engine; each kind is a frozen dataclass.

    name: that in the event log; empty for an event that is not logged.
    logged: what the log shows of it, as `key` or `key=path`, with paths as of attrgetter.
    """

    name: ClassVar[str] = ""
    logged: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class CacheReset(Event):
    """vLLM's prefix cache is about to be reset, as for new weights."""


class RulesFailed(Event):
    """The policy answered a question late or not as it must."""

    fault: Fault


class JobEvent(Event):
    """Something that has happened to a job."""

    job_id: JobKey


# A turn, from its arrival to its end


class Arrived(JobEvent):
    """A request of a job waits from now on; `parent` is the id of the job that spawned it."""

    name = "arrival"
    logged = (
        "turn=turn.number prompt_length=turn.num_prompt_tokens retry=is_retry "
        "inferred=turn.job.is_inferred parent"
    )
    turn: Turn
    tags: Tags
    prompt: Prompt
    is_retry: bool
    parent: str | None


class Inferred(JobEvent):
    """Requests without a `job_id` have proved to be one job."""


class IdShared(JobEvent):
    """A job's id has proved to be that of several conversations at once."""

    name = "id_shared"


class HeldBack(JobEvent):
    """The policy keeps a waiting turn out of memory for now."""

    name = "held"
    logged = "reason"
    turn: Turn
    reason: str


class Overdue(JobEvent):
    """A first turn has been passed over so often that it goes before all others."""

    name = "due"
    logged = "passed"
    passed: int


class Evicted(JobEvent):
    """A turn finds less of its job's context in the cache than the turn before left."""

    name = "evicted"
    logged = "lost_tokens"
    lost_tokens: int


class Admitted(JobEvent):
    """A turn has its first blocks."""

    name = "waiting_to_running"
    logged = (
        "prompt_length=turn.num_prompt_tokens hit_length=turn.hit_tokens "
        "expected_hit_length=turn.common_tokens waited_s is_later=turn.is_later "
        "is_side_request=turn.is_side_request"
    )
    turn: Turn
    waited_s: float


class Preempted(Event):
    """A running request has lost its blocks and waits again; `job_id` is None without a job."""

    name = "preempted"
    job_id: JobKey | None


class Resumed(JobEvent):
    """A turn that was preempted, or whose cache was reset, has blocks again."""

    name = "resumed"
    logged = "hit_length=hit_tokens"
    turn: Turn
    hit_tokens: int


class Finished(JobEvent):
    """A turn has ended with an answer, and keeps `num_blocks` of what it leaves in the cache."""

    name = "finish"
    logged = (
        "turn=turn.job.num_turns context_length=turn.job.context_tokens "
        "output_length=output_tokens ttft_s=turn.ttft_s"
    )
    turn: Turn
    context: Context
    output_tokens: int
    num_blocks: int


class Aborted(JobEvent):
    """A turn has ended without an answer, perhaps before it had blocks."""

    name = "aborted"
    turn: Turn
    is_held: bool
    """Its job's blocks are held all the same, as of a turn that was left after its first tokens."""


# Between two turns


class Pinned(JobEvent):
    """A finished turn's blocks are pinned."""

    name = "pinned"
    logged = "blocks ttl_s reason=pin.reason"
    pin: Pin[Any]
    blocks: int
    ttl_s: float


class Decided(JobEvent):
    """The policy knows what runs between two turns, and how long the KV is pinned for it."""

    name = "decision"
    logged = (
        "told_by command speed=decision.speed source=decision.source "
        "ttl_s=decision.ttl.seconds reason=decision.ttl.reason blocks "
        "p50_s=decision.p50_s p90_s=decision.p90_s"
    )
    pin: Pin[Any] | None
    decision: Decision
    told_by: str
    """ "client" or "reply"."""
    command: str | None
    """The tool call's key, or its text with `show_commands`."""
    is_first: bool
    """True for the first decision about this pin."""
    blocks: int
    """Blocks that are pinned; 0 if none are."""


class Trimmed(JobEvent):
    """A pin has given up its last blocks and holds the others.

    `taken_by` is the key of the job that needs them, "" for a request without one, None if the
    policy did not want to hold them.
    """

    name = "trimmed"
    logged = "blocks left"
    pin: Pin[Any]
    blocks: int
    left: int
    taken_by: str | None


class Unpinned(JobEvent):
    """A pin has ended; `taken_by` as of Trimmed, for one that ended under pressure."""

    name = "unpinned"
    logged = "reason blocks trimmed=pin.num_trimmed held_s"
    pin: Pin[Any]
    reason: PinEnd
    blocks: int
    held_s: float
    taken_by: str | None


class ToolSignal(JobEvent):
    """The client reports a tool; `command` is its key, or its text with `show_commands`."""

    logged = "tool command duration_s"
    tool: str
    command: str
    duration_s: float | None


class ToolStarted(ToolSignal):
    """The client reports that a tool has started."""

    name = "tool_started"


class ToolEnded(ToolSignal):
    """The client reports that a tool has finished."""

    name = "tool_finished"


class ToolIgnored(ToolSignal):
    """A report is about another turn than the job's last one."""

    name = "tool_signal_ignored"


class ToolMeasured(JobEvent):
    """A tool's duration is known."""

    source: str
    """ "client", "piggyback" or "gap"."""
    duration_s: float
    reached: str | None = None
    """Where the duration lies in what was predicted: "to_p50", "to_p90", "over_p90" or None."""


# What the watchers of the plugin find themselves


class Reused(JobEvent):
    """What a later turn found of what the turn before had left; `miss` is why not all of it."""

    name = "reuse"
    logged = "turn expected_tokens miss"
    turn: int
    expected_tokens: int
    miss: Any


class KVFreed(JobEvent):
    """The KV of these requests is given up for good; made if a watcher has `on_kv_freed`."""

    name = "kv_freed"
    logged = "state number reason request_ids"
    number: int
    reason: FreeReason
    request_ids: list[str]
    state: str = "FREED"


class Closed(JobEvent):
    """A job is over: released, at its last step, aborted, or forgotten."""

    name = "closed"
    logged = "reason turns=job.num_turns took_s=job.took_s"
    job: Job
    reason: FreeReason


EVENTS: tuple[type[Event], ...] = (
    *(CacheReset, RulesFailed, Arrived, Inferred, IdShared, HeldBack, Overdue, Evicted, Admitted),
    *(Preempted, Resumed, Finished, Aborted, Pinned, Decided, Trimmed, Unpinned, ToolStarted),
    *(ToolEnded, ToolIgnored, ToolMeasured, Reused, KVFreed, Closed),
)


class Details:
    """Reads what the log shows of events of one kind, without a call of Python code for each."""

    def __init__(self, kind: type[Event]) -> None:
        pairs = [part.partition("=") for part in kind.logged.split()]
        self.names = ("event", *(key for key, _, _ in pairs))
        # with two paths or more an attrgetter gives a tuple
        self.read = attrgetter("name", *(path or key for key, _, path in pairs), "name")


DETAILS = {kind: Details(kind) for kind in EVENTS}


def details(event: Event) -> dict[str, Any]:
    """What the log shows of an event, its name among it."""
    known = DETAILS[type(event)]
    return dict(zip(known.names, known.read(event), strict=False))


def handler_name(kind: type[Event]) -> str:
    """The method that takes events of this kind: `on_tool_started` for ToolStarted."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind.__name__)
    return "on_" + words.lower()
