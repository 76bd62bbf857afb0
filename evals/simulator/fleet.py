"""Several engines behind a router: where requests go, and what happens when an engine fails.

A router knows what a real one could: the requests it has under way on each engine, what engines
last reported, and what it sent where. Used by run.py for more than one engine; imports no vLLM.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from agentkv.command_line import whole_number
from agentkv.errors import InputError, not_among

from .alone import prefill_coefficients
from .machine import Machine
from .turns import LiveTurn

if TYPE_CHECKING:  # the engine imports vLLM, which takes seconds
    from .agents import Timeline
    from .engine import SimulatedEngine

REPORT_EVERY_S = 0.1
"""How old the reports that a router has may be: vLLM's coordinator sends them at this pace."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that is gone at a time with all that it holds, and may come back empty."""

    rank: int
    at_s: float
    recovers_s: float | None = None

    def is_down(self, time_s: float) -> bool:
        """True between the failure and the recovery."""
        return self.at_s <= time_s and (self.recovers_s is None or time_s < self.recovers_s)


def parse_failure(text: str) -> Failure:
    """The failure of ENGINE@SECONDS[:SECONDS]; raises InputError."""
    number = r"\d+(?:\.\d*)?"
    match = re.fullmatch(rf"(\d+)@({number})(?::({number}))?", text)
    if match is None:
        raise InputError(
            f"--fail: got {text!r}, allowed is ENGINE@SECONDS, or ENGINE@SECONDS:RECOVERS with the "
            "second at which it is back, such as 0@60:120"
        )
    failure = Failure(int(match[1]), float(match[2]), float(match[3]) if match[3] else None)
    if failure.recovers_s is not None and failure.recovers_s <= failure.at_s:
        raise InputError(f"--fail: got {text!r}, an engine recovers after it has failed")
    return failure


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """How many engines there are, the router in front of them, and which engines fail.

    Raises InputError unless the router and all engines exist and one engine is always up.
    """

    engines: int
    router: str
    failures: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if self.router not in ROUTERS:
            raise InputError(f"--router: {not_among(self.router, ROUTERS)}")
        for failure in self.failures:
            down = [other.rank for other in self.failures if other.is_down(failure.at_s)]
            problem = None
            if failure.rank >= self.engines:
                problem = (
                    f"got engine {failure.rank}, allowed are 0 to {self.engines - 1} "
                    f"(--engines {self.engines})"
                )
            elif len(set(down)) < len(down):
                problem = f"engine {failure.rank} fails at {failure.at_s:g} s while it is down"
            elif len(down) == self.engines:
                problem = (
                    f"at {failure.at_s:g} s no engine is up; give more --engines, or let one "
                    "recover before"
                )
            if problem is not None:
                raise InputError(f"--fail: {problem}")


@dataclass(slots=True)
class Upstream:
    """What a router knows of one engine; `num_waiting` and `report` are as old as the last poll."""

    rank: int
    pool_tokens: int
    in_flight: dict[str, LiveTurn] = field(default_factory=dict)
    """The requests under way there, by id."""
    num_waiting: int = 0
    report: Any = None
    """What the plugin's balancer reads (see plugin.py); None before the first poll."""


class RoundRobin:
    """One engine after the other, for requests and signals alike.

    Routers choose by rank among the engines that are up, of which there is at least one.
    """

    def __init__(self) -> None:
        self._last = -1

    def choose(self, turn: LiveTurn, engines: Sequence[Upstream], now_s: float) -> int:
        """The engine that gets the turn's request, which is then sent there."""
        return self.next_of(engines)

    def choose_for_signal(self, job_key: str, engines: Sequence[Upstream]) -> int:
        """The engine that gets a tool event or the release of a job."""
        return self.next_of(engines)

    def next_of(self, engines: Sequence[Upstream]) -> int:
        """Rank of the next engine in turn."""
        ranks = [engine.rank for engine in engines]
        self._last = next((rank for rank in ranks if rank > self._last), ranks[0])
        return self._last


class LeastLoaded(RoundRobin):
    """The engine with the fewest requests under way; of equal ones the next in turn."""

    def next_of(self, engines: Sequence[Upstream]) -> int:
        fewest = min(len(engine.in_flight) for engine in engines)
        return super().next_of([engine for engine in engines if len(engine.in_flight) == fewest])


class Sticky(LeastLoaded):
    """A job's first turn as LeastLoaded has it, all later ones and signals to the same engine.

    Where that engine is down, the job stays with the one that it gets in its place. Source: HAProxy
    by `integrations/routers/haproxy.cfg`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[str, int] = {}

    def choose(self, turn: LiveTurn, engines: Sequence[Upstream], now_s: float) -> int:
        if turn.job_key is None:
            return self.next_of(engines)
        rank = self.choose_for_signal(turn.job_key, engines)
        self._ranks[turn.job_key] = rank
        return rank

    def choose_for_signal(self, job_key: str, engines: Sequence[Upstream]) -> int:
        return self.if_up(self._ranks.get(job_key), engines)

    def if_up(self, rank: int | None, engines: Sequence[Upstream]) -> int:
        """This engine, or the least loaded one where it is down."""
        is_up = any(engine.rank == rank for engine in engines)
        return rank if rank is not None and is_up else self.next_of(engines)


def sticky_spill() -> RoundRobin:
    """The plugin's own balancer."""
    from .plugin import StickySpill  # vLLM: not before the flags are known to be good

    return StickySpill()


class PrefixAware(LeastLoaded):
    """The engine to which most of the prompt went before, unless load differs too much.

    It keeps the contexts that it sent to an engine, at most as many tokens as fit there, and knows
    nothing of jobs. Source: `cache_aware` of SGLang's router, with its documented defaults.
    """

    CACHE_THRESHOLD = 0.5
    """Share of the prompt from which the cache decides."""
    BALANCE_ABS, BALANCE_REL = 32, 1.0001
    """Load decides where the fullest engine has this many requests more than the emptiest, and
    this many times as many."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, SentContexts] = {}

    def choose(self, turn: LiveTurn, engines: Sequence[Upstream], now_s: float) -> int:
        for engine in engines:
            self._sent.setdefault(engine.rank, SentContexts(engine.pool_tokens))
        loads = [len(engine.in_flight) for engine in engines]
        least, most = min(loads), max(loads)
        is_unbalanced = most - least > self.BALANCE_ABS and most > self.BALANCE_REL * least
        found = {engine.rank: self._sent[engine.rank].match(turn) for engine in engines}
        best = max(found, key=lambda rank: found[rank])
        if is_unbalanced or found[best] <= self.CACHE_THRESHOLD * turn.prompt_tokens:
            best = self.next_of(engines)
        self._sent[best].add(turn)
        return best


class SentContexts:
    """The contexts sent to one engine; the least recently used are forgotten.

    A tree of prefixes, as far as simulated contexts have branches: a job's own, and those of
    prefixes that jobs share.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._tokens: OrderedDict[tuple[str, str], int] = OrderedDict()

    def match(self, turn: LiveTurn) -> int:
        """Tokens of the prompt that went to this engine before."""
        return max((self._tokens.get(name, 0) for name, _ in _branches(turn)), default=0)

    def add(self, turn: LiveTurn) -> None:
        """Note that the prompt goes to this engine now."""
        for name, num_tokens in _branches(turn):
            self._num_tokens += num_tokens - self._tokens.pop(name, 0)
            self._tokens[name] = num_tokens
        while self._num_tokens > self._max_tokens and len(self._tokens) > 1:
            self._num_tokens -= self._tokens.popitem(last=False)[1]


def _branches(turn: LiveTurn) -> Iterable[tuple[tuple[str, str], int]]:
    for prefix in turn.prefixes:
        yield ("prefix", prefix.name), prefix.num_tokens
    yield ("context", turn.context), turn.prompt_tokens


ROUTERS: dict[str, Callable[[], RoundRobin]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "sticky": Sticky,
    "sticky-spill": sticky_spill,
    "prefix-aware": PrefixAware,
}
DEFAULT_ROUTER = "sticky-spill"


class Fleet:
    """The engines and their router: takes turns and signals as one engine does.

    `make_engine` builds an engine whose clock stands at a time, and that hands its ended turns to
    the function. `on_turn_end` gets those that a client has a reply of.
    """

    def __init__(
        self,
        plan: FleetPlan,
        machine: Machine,
        make_engine: Callable[[float, Callable[[LiveTurn], None]], SimulatedEngine],
        timeline: Timeline,
        on_turn_end: Callable[[LiveTurn], None],
    ) -> None:
        self._make_engine = make_engine
        self._machine = machine
        self._router = ROUTERS[plan.router]()
        self._timeline = timeline
        self._on_turn_end = on_turn_end
        self._upstreams = [Upstream(rank, machine.pool_tokens) for rank in range(plan.engines)]
        self._up = list(self._upstreams)
        self.engines = [self._new_engine(view, 0.0) for view in self._upstreams]
        """Those that are up or have failed last, by rank."""
        self.replaced: list[SimulatedEngine] = []
        """Those that failed and came back as new ones."""
        self._polled_s = -math.inf
        self._prefill_s = prefill_coefficients(machine)
        self._last_rank: dict[str, int] = {}
        self.counters: dict[str, Any] = {
            **{"turns_by_engine": [0] * plan.engines, "moved_turns": 0, "resent_turns": 0}
        }
        """Turns sent to each engine; those sent to another engine than their job's turn before, and
        those sent again because their engine failed."""
        for failure in plan.failures:
            timeline.at(failure.at_s, partial(self._fail, failure.rank))
            if failure.recovers_s is not None:
                timeline.at(failure.recovers_s, partial(self._recover, failure.rank))

    @property
    def up(self) -> list[SimulatedEngine]:
        return [self.engines[view.rank] for view in self._up]

    def send(self, turn: LiveTurn, now_s: float) -> None:
        """Route a turn's request, which reaches its engine now."""
        if now_s >= self._polled_s + REPORT_EVERY_S:
            self._polled_s = now_s
            for view, engine in zip(self._up, self.up, strict=True):
                view.num_waiting = engine.num_waiting
                view.report = engine.plugin.report(self._prefill_s, now_s)
        rank = self._router.choose(turn, self._up, now_s)
        self.counters["turns_by_engine"][rank] += 1
        self.counters["moved_turns"] += self._last_rank.get(turn.context, rank) != rank
        self._last_rank[turn.context] = rank
        self._upstreams[rank].in_flight[turn.request_id] = turn
        self.engines[rank].send(turn, now_s)

    def signal(self, op: str, job_key: str, *args: Any, now_s: float) -> None:
        """Hand a signal of a job to one engine: the one that the router chooses."""
        rank = self._router.choose_for_signal(job_key, self._up)
        self.engines[rank].signal(op, job_key, *args, now_s=now_s)

    def reset(self, now_s: float) -> None:
        """Drop all KV of all engines (see `SimulatedEngine.reset`)."""
        for engine in self.up:
            engine.reset(now_s)

    def _new_engine(self, view: Upstream, now_s: float) -> SimulatedEngine:
        return self._make_engine(now_s, partial(self._turn_ended, view))

    def _turn_ended(self, view: Upstream, turn: LiveTurn) -> None:
        if view.in_flight.get(turn.request_id) is turn:  # else its engine has failed
            del view.in_flight[turn.request_id]
            self._on_turn_end(turn)

    def _fail(self, rank: int) -> None:
        view = self._upstreams[rank]
        self._up.remove(view)
        lost = list(view.in_flight.values())
        view.in_flight.clear()
        view.report, view.num_waiting = None, 0
        self.counters["resent_turns"] += len(lost)
        sent_s = self._timeline.now_s + self._machine.request_s
        for turn in lost:
            self._timeline.at(sent_s, partial(self.send, turn.sent_again(), sent_s))

    def _recover(self, rank: int) -> None:
        view = self._upstreams[rank]
        self.replaced.append(self.engines[rank])
        self.engines[rank] = self._new_engine(view, self._timeline.now_s)
        self._up.append(view)
        self._up.sort(key=lambda other: other.rank)


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe several machines and the router before them."""
    add = parser.add_argument_group("several engines").add_argument
    engines = "that many such machines, each with a scheduler and a pool of its own, and a router"
    add("--engines", type=whole_number(1), metavar="R", help=engines)
    routers = f"one of {', '.join(ROUTERS)} (default {DEFAULT_ROUTER})"
    add("--router", metavar="NAME", help=routers)
    fail = "engine ENGINE, from 0 on, fails at that second, and is back empty at the other one"
    add(
        "--fail",
        action="append",
        metavar="ENGINE@S[:S]",
        help=f"{fail}; may be given several times",
    )
