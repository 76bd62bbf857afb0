"""What happened to each job of a run: the same rows from a real server and from the simulator.

All times are seconds since the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .workload.plans import JobRole

JobStatus = Literal["done", "failed", "cut"]
"""How a job ended: all turns answered, a turn failed, or the run ended first."""


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One played turn; `turn` counts from 0.

    `ended_s`: the reply was complete, or the turn failed or was cut. `tool_s`: run time of the tool
    after it. `error`: why there is no complete reply, None if there is one. `output_digest`: equal
    for equal outputs, None where outputs mean nothing.
    """

    turn: int
    sent_s: float
    first_token_s: float | None
    ended_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    tool_s: float
    error: str | None = None
    output_digest: str | None = None

    @property
    def to_first_token_s(self) -> float:
        """Queueing and prefill; the whole turn where no token came."""
        return (self.ended_s if self.first_token_s is None else self.first_token_s) - self.sent_s

    @property
    def decode_s(self) -> float:
        """From the first token to the last; 0 where no token came."""
        return 0.0 if self.first_token_s is None else self.ended_s - self.first_token_s

    @property
    def latency_s(self) -> float:
        """From sending the request to the end of the reply."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job from its arrival to its end.

    `alone_s` is how long the same job takes with the machine to itself, None where not known.
    """

    job_id: str
    arrived_s: float
    ended_s: float
    status: JobStatus
    turns: tuple[TurnOutcome, ...]
    alone_s: float | None = None
    role: JobRole = "agent"
    client: str = ""

    @property
    def is_whole(self) -> bool:
        """True for an agent's job by itself: neither part of another job nor a conversation."""
        return self.role in ("agent", "sample")

    @property
    def duration_s(self) -> float:
        return self.ended_s - self.arrived_s

    @property
    def parts(self) -> dict[str, float]:
        """The duration taken apart, in seconds; `other_s` is the load generator's own time, and
        pauses."""
        known_s = {
            "to_first_token_s": sum(turn.to_first_token_s for turn in self.turns),
            "decode_s": sum(turn.decode_s for turn in self.turns),
            "tools_s": sum(turn.tool_s for turn in self.turns),
        }
        first_s, decode_s, tools_s = known_s.values()
        return known_s | {"other_s": self.duration_s - first_s - decode_s - tools_s}


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One policy's run over a workload.

    `workload` is how the workload was made, `server` its counters (of a real server `before` and
    `after`), `metadata` commit, versions, seed, config and repeat.
    """

    policy: str
    workload: Mapping[str, Any]
    jobs: tuple[JobOutcome, ...]
    server: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the end of the last job."""
        if not self.jobs:
            return 0.0
        return max(job.ended_s for job in self.jobs) - min(job.arrived_s for job in self.jobs)
