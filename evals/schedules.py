"""Random schedules of what agents do, for `agentkv policy check`, and how to shrink one.

A schedule is the shape of an engine and a list of events; one seed makes the same schedules
everywhere. Knows nothing of policies or vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

JOBS = ("a", "b", "c", "d", "a.1")
"""Jobs of a schedule; "a.1" is a sub-agent of "a"."""
COMMANDS = ("ls -la", "pytest -q", "pip install torch", "frobnicate --all")
NUM_EVENTS = (6, 30)
"""Events of a schedule, from and to."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The engine that a schedule is played on: a tiny pool of blocks of 16 tokens."""

    num_blocks: int = 40
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 512
    has_tier: bool = False
    is_async: bool = False

    def __str__(self) -> str:
        tier = "a DRAM tier, " if self.has_tier else ""
        kind = "async" if self.is_async else "sync"
        return (
            f"{self.num_blocks} blocks, {tier}{self.max_num_seqs} requests at once, "
            f"{self.max_num_batched_tokens} tokens a step, {kind} scheduling"
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """A turn of a job arrives, its context continued; `job` None is a request without a job."""

    job: str | None
    new_tokens: int
    output_tokens: int
    command: str | None = None
    is_last_step: bool = False

    def __str__(self) -> str:
        who = "a request without a job" if self.job is None else f"a turn of job {self.job}"
        runs = "" if self.command is None else f", whose reply runs `{self.command}`"
        last = ", its last" if self.is_last_step else ""
        return f"{who} arrives{last}: {self.new_tokens} tokens, writes {self.output_tokens}{runs}"


@dataclass(frozen=True, slots=True)
class ToolReport:
    """The client of a job reports that a tool has started, or finished."""

    job: str
    has_finished: bool
    command: str

    def __str__(self) -> str:
        return f"`{self.command}` of job {self.job} {'ends' if self.has_finished else 'starts'}"


@dataclass(frozen=True, slots=True)
class Abort:
    """The client gives up the newest turn of a job."""

    job: str | None

    def __str__(self) -> str:
        return "the newest request " + (
            "without a job is aborted" if self.job is None else f"of job {self.job} is aborted"
        )


@dataclass(frozen=True, slots=True)
class Release:
    """The client releases a job."""

    job: str

    def __str__(self) -> str:
        return f"job {self.job} is released"


@dataclass(frozen=True, slots=True)
class Pass:
    """Time passes: the engine works, and idles if there is nothing to do."""

    seconds: float

    def __str__(self) -> str:
        return f"{self.seconds:g} s pass"


@dataclass(frozen=True, slots=True)
class Reset:
    """vLLM's prefix cache is reset."""

    preempts_running: bool = False

    def __str__(self) -> str:
        return "the prefix cache is reset" + (", and all turns" if self.preempts_running else "")


@dataclass(frozen=True, slots=True)
class Rush:
    """New jobs arrive without a break until all turns that came before them have ended."""

    def __str__(self) -> str:
        return "new jobs keep coming until all earlier turns have ended"


Event = Arrival | ToolReport | Abort | Release | Pass | Reset | Rush


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens, in order, on an engine of a shape."""

    shape: Shape
    events: tuple[Event, ...]

    def lines(self) -> list[str]:
        """The engine, then one line an event."""
        return [str(self.shape), *map(str, self.events)]


def random_schedule(rng: random.Random) -> Schedule:
    """A schedule in which jobs arrive, run tools, end, are aborted and collide in a tiny pool."""
    shape = Shape(
        num_blocks=rng.randint(14, 40),
        max_num_seqs=rng.randint(1, 4),
        max_num_batched_tokens=rng.choice((16, 64, 512)),
        has_tier=rng.random() < 0.4,
        is_async=rng.random() < 0.5,
    )
    return Schedule(shape, tuple(_random_event(rng) for _ in range(rng.randint(*NUM_EVENTS))))


def _random_event(rng: random.Random) -> Event:
    job = rng.choice(JOBS)
    kinds = {"arrival": 42, "pass": 25, "tool": 15, "abort": 5, "release": 4, "reset": 3, "rush": 6}
    (kind,) = rng.choices(list(kinds), list(kinds.values()))
    if kind == "arrival":
        return Arrival(
            None if rng.random() < 0.15 else job,
            new_tokens=rng.randint(1, 160),
            output_tokens=rng.randint(1, 40),
            command=rng.choice((None, *COMMANDS)),
            is_last_step=rng.random() < 0.1,
        )
    if kind == "tool":
        return ToolReport(job, rng.random() < 0.5, rng.choice(COMMANDS))
    if kind == "abort":
        return Abort(rng.choice((*JOBS, None)))
    if kind == "release":
        return Release(job)
    if kind == "reset":
        return Reset(rng.random() < 0.3)
    return Rush() if kind == "rush" else Pass(rng.choice((0.05, 0.3, 1.0, 3.0, 30.0)))


def shrink(schedule: Schedule, still_fails: Callable[[Schedule], bool]) -> Schedule:
    """The smallest schedule found that still fails: fewer events, then simpler ones."""
    length = len(schedule.events)
    while length:
        start = 0
        while start < len(schedule.events):
            events = schedule.events[:start] + schedule.events[start + length :]
            if still_fails(shorter := replace(schedule, events=events)):
                schedule = shorter
            else:
                start += length
        length //= 2
    found: Schedule | None = schedule
    while found is not None:
        schedule = found
        found = next(filter(still_fails, _simpler(schedule)), None)
    return schedule


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Each schedule that differs in one simpler value."""
    shape, plain = schedule.shape, Shape()
    for name in ("has_tier", "is_async", "max_num_seqs", "max_num_batched_tokens"):
        if getattr(shape, name) != getattr(plain, name):
            yield replace(schedule, shape=replace(shape, **{name: getattr(plain, name)}))
    for place, event in enumerate(schedule.events):
        for simpler in _simpler_events(event):
            events = (*schedule.events[:place], simpler, *schedule.events[place + 1 :])
            yield replace(schedule, events=events)


def _simpler_events(event: Event) -> Iterator[Event]:
    if isinstance(event, Pass) and event.seconds > 1:
        yield Pass(1.0)
    if not isinstance(event, Arrival):
        return
    if event.is_last_step:
        yield replace(event, is_last_step=False)
    if event.command is not None:
        yield replace(event, command=None)
    if event.output_tokens > 4:
        yield replace(event, output_tokens=4)
    for tokens in (20, 50, 100):
        if event.new_tokens > tokens:
            yield replace(event, new_tokens=tokens)
