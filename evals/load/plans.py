"""What jobs are to do: the same plan is played on a real server and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from agentkv.errors import AgentKVError


class WorkloadError(AgentKVError, ValueError):
    """A workload that cannot be made; the text names what was seen and what is allowed."""


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn: what it adds to the context, what the model writes, and the tool that follows.

    `added_tokens` is the user's text or the tool's output; `command` is the tool call of this
    turn's reply and `tool_s` how long it runs, "" and 0.0 in the last turn.
    """

    added_tokens: int
    output_tokens: int
    command: str
    tool_s: float


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One agent job; it arrives `arrival_s` after the start of the run (0.0 in a closed loop)."""

    job_id: str
    arrival_s: float
    turns: tuple[TurnPlan, ...]

    def prompt_tokens(self, turn: int) -> int:
        """Tokens of the prompt of turn `turn`, from 0: all that came before, and what it adds."""
        added = sum(plan.added_tokens for plan in self.turns[: turn + 1])
        return added + sum(plan.output_tokens for plan in self.turns[:turn])

    @property
    def context_tokens(self) -> int:
        """Tokens of the whole job: the last turn's prompt and output."""
        return self.prompt_tokens(len(self.turns) - 1) + self.turns[-1].output_tokens

    @property
    def tool_s(self) -> float:
        """Seconds spent in tools, all turns together."""
        return sum(plan.tool_s for plan in self.turns)


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs and how they arrive: at their times, or, with `concurrency`, so many at once."""

    name: str
    seed: int
    jobs: tuple[JobPlan, ...]
    concurrency: int | None
