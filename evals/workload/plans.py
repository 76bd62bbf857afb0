"""What jobs do and when they arrive: the same plan is played on a real server and simulated."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from agentkv.errors import InputError

BURST_JOBS = 8
"""Jobs of one burst; bursts come at random, so that the rate holds on average. Chosen."""

Steps = Literal["synchronous", "partial"]
"""Training steps, each ended by an update of the weights, which resets the prefix cache: of jobs
that start together, up to the last of them, or jobs that go on through updates."""
JobRole = Literal["agent", "sub-agent", "chat", "sample"]
"""A job by itself, one that a turn of another job waits for, a person's conversation, which sends
no tags, or one of the samples of a training step."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first `num_tokens` tokens of a context, equal in all jobs with a prefix of this name.

    Jobs that have a longer prefix in common have the shorter ones before it in common, too.
    """

    name: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """One turn: what it adds to the context, what the model writes, and what follows.

    `added_tokens` is the user's text or the tool's output; `command` is the tool call of this
    turn's reply and `tool_s` how long it runs; `children` are jobs that it starts, each
    `arrival_s` after the turn's end, and waits for. `pause_s` passes between the tool's end and
    the next turn, and nobody reports it: a person reads and writes, or the agent itself works.
    The last turn has none of these. `kept_tokens` are those at the context's start that the prompt
    keeps, before what it adds: None for all; fewer where an agent rewrote its history.
    """

    added_tokens: int
    output_tokens: int
    command: str
    tool_s: float
    pause_s: float = 0.0
    children: tuple[JobPlan, ...] = ()
    kept_tokens: int | None = None

    def as_last(self) -> TurnPlan:
        """The same turn as a job's last."""
        return TurnPlan(
            self.added_tokens, self.output_tokens, "", 0.0, kept_tokens=self.kept_tokens
        )

    def prompt_tokens(self, context_tokens: int) -> int:
        """Tokens of its prompt, where `context_tokens` came before."""
        kept = context_tokens if self.kept_tokens is None else self.kept_tokens
        return min(kept, context_tokens) + self.added_tokens


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job; it arrives `arrival_s` after the start of the run (0.0 in a closed loop).

    `prefixes`, from the shortest to the longest, are part of what the first turn adds.
    """

    job_id: str
    arrival_s: float
    turns: tuple[TurnPlan, ...]
    prefixes: tuple[Prefix, ...] = ()
    role: JobRole = "agent"
    client: str = ""
    """Whose job it is; "" where there is one client, and for sub-agents, who are their parent's."""

    @property
    def is_tagged(self) -> bool:
        """True if its client sends tags and signals to a server with the plugin."""
        return self.role != "chat"

    def prompt_tokens(self, turn: int) -> int:
        """Tokens of the prompt of turn `turn`, from 0: what it keeps of all before, and adds."""
        prompt_tokens = context_tokens = 0
        for plan in self.turns[: turn + 1]:
            prompt_tokens = plan.prompt_tokens(context_tokens)
            context_tokens = prompt_tokens + plan.output_tokens
        return prompt_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens of the longest context: a prompt and its output."""
        longest = context_tokens = 0
        for plan in self.turns:
            context_tokens = plan.prompt_tokens(context_tokens) + plan.output_tokens
            longest = max(longest, context_tokens)
        return longest


def with_children(jobs: Iterable[JobPlan]) -> Iterator[JobPlan]:
    """These jobs and all that their turns start, a parent before its children."""
    for job in jobs:
        yield job
        for turn in job.turns:
            yield from with_children(turn.children)


@dataclass(frozen=True, slots=True)
class Workload:
    """Jobs, started at their times or, with `concurrency`, that number of them at once.

    In synchronous steps the next `concurrency` jobs start together, when the last one of those
    before has ended; otherwise each is followed by the next.
    """

    name: str
    seed: int
    jobs: tuple[JobPlan, ...]
    concurrency: int | None
    steps: Steps | None = None

    @property
    def jobs_per_step(self) -> int | None:
        """Jobs that end in one training step; None without steps.

        In partial steps half of those that run at once: the others go on with new weights. Chosen.
        """
        if self.steps is None or self.concurrency is None:
            return None
        return self.concurrency if self.steps == "synchronous" else max(1, self.concurrency // 2)


def deal_jobs(workload: Workload, loads: Mapping[str, float]) -> Workload:
    """The workload with its jobs dealt to clients, by name, at random in proportion to their loads.

    Whose a job is depends on the seed and the job's number alone.
    """

    def client_of(number: int) -> str:
        rng = random.Random(f"{workload.seed} client {number}")
        return rng.choices(list(loads), list(loads.values()))[0]

    jobs = [replace(job, client=client_of(number)) for number, job in enumerate(workload.jobs)]
    return replace(workload, jobs=tuple(jobs))


def arrival_times_s(arrivals: str, *, seed: int, jps: float | None, num_jobs: int) -> list[float]:
    """Times of `num_jobs` jobs, in order.

    arrivals: "poisson" or "burst", at `jps` jobs per second. The same seed gives the same pattern
    at every rate, stretched. Raises InputError without a rate.
    """
    if jps is None:
        raise InputError("jps: got None, allowed is a number of jobs per second above 0")
    num_at_once = 1 if arrivals == "poisson" else BURST_JOBS
    rng, time_s, times_s = random.Random(f"{seed} arrivals"), 0.0, []
    for number in range(num_jobs):
        if number % num_at_once == 0:
            time_s += rng.expovariate(1.0) * num_at_once / jps
        times_s.append(time_s)
    return times_s
