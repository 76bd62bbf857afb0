"""Routers before several engines: which one gets a request, by what a router can know.

That is the requests it has under way on each engine, what engines last reported, and what it sent
where before. Called by fleet.py; knows nothing of schedulers or time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentkv.integrations.vllm.telemetry.load_reports import EngineLoad, EngineReport

from ..workload.plans import Prefix


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router reads of a request."""

    context: str
    """Stands for the prompt's text: its conversation, by a name of its own."""
    job_id: str | None
    """From the headers; None if the client sends none."""
    parent_job_id: str | None
    prompt_tokens: int
    prefixes: tuple[Prefix, ...] = ()
    """Parts of the prompt that other jobs have, too, from the shortest to the longest."""


@dataclass(slots=True)
class EngineView:
    """What a router knows of an engine; reports are as old as the last poll."""

    rank: int
    pool_tokens: int
    in_flight: dict[str, Any] = field(default_factory=dict)
    """The requests that it has under way there, by id."""
    num_waiting: int = 0
    report: EngineReport | None = None

    @property
    def load(self) -> EngineLoad:
        """Requests under way, of which the last poll saw this number waiting."""
        num_waiting = min(self.num_waiting, len(self.in_flight))
        return EngineLoad(num_waiting, len(self.in_flight) - num_waiting)


class Router(Protocol):
    """Chooses among the engines that are up, of which there is at least one."""

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        """Rank of the engine that gets the request, which is then sent there."""
        ...

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        """Rank of the engine that gets a tool event or the release of a job."""
        ...


class RoundRobin:
    """One engine after the other, for requests and signals alike."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        return self._next(engines)

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        return self._next(engines)

    def _next(self, engines: Sequence[EngineView]) -> int:
        ranks = [engine.rank for engine in engines]
        self._last = next((rank for rank in ranks if rank > self._last), ranks[0])
        return self._last


class LeastLoaded:
    """The engine with the fewest requests under way; of equal ones the next in turn."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        return self.least(engines)

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        return self.least(engines)

    def least(self, engines: Sequence[EngineView]) -> int:
        """Rank of that engine."""
        fewest = min(len(engine.in_flight) for engine in engines)
        ranks = [engine.rank for engine in engines if len(engine.in_flight) == fewest]
        self._last = next((rank for rank in ranks if rank > self._last), ranks[0])
        return self._last


class Sticky:
    """A job's first turn as LeastLoaded has it, all later ones and signals to the same engine.

    Where that engine is down, the job stays with the one that it gets in its place. Source: HAProxy
    by `integrations/routers/haproxy.cfg`.
    """

    def __init__(self) -> None:
        self._least_loaded = LeastLoaded()
        self._ranks: dict[str, int] = {}

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        if request.job_id is None:
            return self._least_loaded.least(engines)
        rank = _rank_if_up(self._ranks.get(request.job_id), engines, self._least_loaded)
        self._ranks[request.job_id] = rank
        return rank

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        return _rank_if_up(self._ranks.get(job_id), engines, self._least_loaded)


class StickySpill:
    """The plugin's own balancer, with its table: sticky, unless moving is expected to be faster."""

    def __init__(self) -> None:
        # vLLM takes seconds to import: not before the flags are known to be good
        from agentkv.integrations.vllm.api.balancer import EngineTable, JobBalancer

        self._least_loaded = LeastLoaded()
        self._now_s = 0.0
        self._table = EngineTable.of_this_process(lambda: self._now_s)
        self._balancer = JobBalancer(self._table)

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        if request.job_id is None:
            return self._least_loaded.least(engines)
        self._now_s = now_s
        reports = {engine.rank: engine.report for engine in engines if engine.report is not None}
        loads = {engine.rank: engine.load for engine in engines}
        rank = self._balancer.rank_for(
            request.job_id,
            request.parent_job_id,
            request.prompt_tokens,
            loads,
            reports,
            now_s,
        )
        if rank is None:
            rank = self._least_loaded.least(engines)
        self._balancer.sent(request.job_id, rank)
        return rank

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        return _rank_if_up(self._table.get(job_id), engines, self._least_loaded)


def _rank_if_up(rank: int | None, engines: Sequence[EngineView], other: LeastLoaded) -> int:
    is_up = any(engine.rank == rank for engine in engines)
    return rank if rank is not None and is_up else other.least(engines)


class PrefixAware:
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
        self._least_loaded = LeastLoaded()
        self._sent: dict[int, SentContexts] = {}

    def choose(self, request: RoutedRequest, engines: Sequence[EngineView], now_s: float) -> int:
        loads = [len(engine.in_flight) for engine in engines]
        is_unbalanced = max(loads) - min(loads) > self.BALANCE_ABS and max(
            loads
        ) > self.BALANCE_REL * min(loads)
        found = {engine.rank: self._contexts(engine).match(request) for engine in engines}
        best = max(found, key=lambda rank: found[rank])
        if is_unbalanced or found[best] <= self.CACHE_THRESHOLD * request.prompt_tokens:
            best = self._least_loaded.least(engines)
        self._sent[best].add(request)
        return best

    def choose_for_signal(self, job_id: str, engines: Sequence[EngineView]) -> int:
        return self._least_loaded.least(engines)

    def _contexts(self, engine: EngineView) -> SentContexts:
        return self._sent.setdefault(engine.rank, SentContexts(engine.pool_tokens))


class SentContexts:
    """The contexts sent to one engine; the least recently used are forgotten.

    A tree of prefixes, as far as simulated contexts have branches: a job's own, and those of
    prefixes that jobs share.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._tokens: OrderedDict[tuple[str, str], int] = OrderedDict()

    def match(self, request: RoutedRequest) -> int:
        """Tokens of the prompt that went to this engine before."""
        return max((self._tokens.get(name, 0) for name, _ in _branches(request)), default=0)

    def add(self, request: RoutedRequest) -> None:
        """Note that the prompt goes to this engine now."""
        for name, num_tokens in _branches(request):
            self._num_tokens += num_tokens - self._tokens.pop(name, 0)
            self._tokens[name] = num_tokens
        while self._num_tokens > self._max_tokens and len(self._tokens) > 1:
            self._num_tokens -= self._tokens.popitem(last=False)[1]


def _branches(request: RoutedRequest) -> Iterable[tuple[tuple[str, str], int]]:
    for prefix in request.prefixes:
        yield ("prefix", prefix.name), prefix.num_tokens
    yield ("context", request.context), request.prompt_tokens


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "sticky": Sticky,
    "sticky-spill": StickySpill,
    "prefix-aware": PrefixAware,
}
