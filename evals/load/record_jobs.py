"""One job as the server's record tells it: turns, bubbles, tools and pins, as plain values.

Times are seconds since the engine started; None is what has not happened, or was not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT_ENDS = ("returned",)
"""Ends of a pin that paid: the job's next turn took the blocks over."""
WASTED_ENDS = ("expired", "pressure")
"""Ends of a pin that held memory in vain: the job did not come back in time."""


@dataclass(slots=True)
class TurnRecord:
    """One request of a job."""

    turn: int | None
    arrived_s: float
    prompt_tokens: int
    is_retry: bool = False
    is_due: bool = False
    """It was passed over as often as a newcomer ever is: it goes before all."""
    started_s: float | None = None
    hit_tokens: int = 0
    expected_hit_tokens: int = 0
    """Tokens of the prompt that repeat what the turn before left in the cache."""
    context_before_tokens: int = 0
    """Tokens in whole blocks that the turn before left; 0 for a first turn."""
    lost_tokens: int = 0
    """Those of `expected_hit_tokens` that were no longer in the cache."""
    preempted_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    is_aborted: bool = False

    @property
    def waited_s(self) -> float | None:
        """From arrival to the first step that computes it."""
        return None if self.started_s is None else self.started_s - self.arrived_s

    @property
    def is_continuing(self) -> bool:
        """Whether an earlier turn of the job left a context, and this one ran."""
        return self.context_before_tokens > 0 and self.started_s is not None

    @property
    def is_diverged(self) -> bool:
        """Whether the prompt repeats less than all of what the turn before left.

        Source: Job.has_diverged in integrations/vllm/jobs.py.
        """
        repeatable = min(self.context_before_tokens, self.prompt_tokens - 1)
        return self.is_continuing and self.expected_hit_tokens < repeatable


@dataclass(frozen=True, slots=True)
class Bubble:
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
    ttl_s: float
    reason: str = ""
    ended_s: float | None = None
    end: str | None = None

    @property
    def block_seconds(self) -> float:
        """Memory held, blocks times seconds; 0 for a pin that has not ended."""
        return 0.0 if self.ended_s is None else self.blocks * (self.ended_s - self.pinned_s)


@dataclass(slots=True)
class ToolRecord:
    """A tool call that the client told the server of."""

    name: str
    command: str
    started_s: float
    ended_s: float | None = None


@dataclass(slots=True)
class JobRecord:
    """A job from its first turn to its close; `life` counts from 1 where an id was used again."""

    job_id: str
    engine: int | None
    first_event_s: float
    ended_s: float
    """The last that is known of the job."""
    life: int = 1
    turns: list[TurnRecord] = field(default_factory=list)
    bubbles: list[Bubble] = field(default_factory=list)
    pins: list[PinRecord] = field(default_factory=list)
    tools: list[ToolRecord] = field(default_factory=list)
    closed_s: float | None = None
    close_reason: str | None = None

    @property
    def label(self) -> str:
        engine = "" if self.engine is None else f" @{self.engine}"
        return self.job_id + engine + (f" ({self.life})" if self.life > 1 else "")

    @property
    def started_s(self) -> float:
        """The first that is known of the job; a record may begin after that."""
        begun = [turn.arrived_s for turn in self.turns] + [pin.pinned_s for pin in self.pins]
        return min([self.first_event_s, *begun, *(tool.started_s for tool in self.tools)])
