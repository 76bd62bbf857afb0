"""Several engines behind a router on one virtual time: who steps next, where requests go.

Called by run.py, with one engine as well. Each engine has a clock of its own; what happens between
them is an event of the timeline. Knows nothing of agents or policies.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agentkv.integrations.vllm.api.engine_client import merge_timestamps

from .engine import LiveTurn, SimulatedEngine
from .machine import Failure, Machine, check_failures, prefill_coefficients
from .routers import EngineView, RoutedRequest, Router

REPORT_EVERY_S = 0.1
"""How old the reports that a router has may be: vLLM's coordinator sends them at this pace."""


class Timeline:
    """The events to come, in order of their times; those of one time in the order they were set."""

    def __init__(self) -> None:
        self.now_s = 0.0
        """Time of the event that is handled now, or was last."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def next_s(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._events[0][0] if self._events else math.inf

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call `action` at this time."""
        heapq.heappush(self._events, (time_s, next(self._numbers), action))

    def handle_next(self) -> None:
        """Go to the next event and handle it."""
        self.now_s, _, action = heapq.heappop(self._events)
        action()


class Fleet:
    """The engines and their router. `make_engine` builds one whose clock stands at a time."""

    def __init__(
        self,
        num_engines: int,
        machine: Machine,
        make_engine: Callable[[float], SimulatedEngine],
        router: Router,
        timeline: Timeline,
        failures: Sequence[Failure] = (),
    ) -> None:
        check_failures(failures, num_engines)
        self._make_engine = make_engine
        self._machine = machine
        self._router = router
        self._timeline = timeline
        self._on_turn_end: Callable[[LiveTurn], None] = lambda _: None
        self.engines = [make_engine(0.0) for _ in range(num_engines)]
        """Those that are up or have failed last, by rank."""
        self.replaced: list[SimulatedEngine] = []
        """Those that failed and came back as new ones."""
        self._views = [EngineView(rank, machine.pool_tokens) for rank in range(num_engines)]
        self._up = list(self._views)
        self._polled_s = -math.inf
        self._prefill_s = prefill_coefficients(machine)
        self.turns = [0] * num_engines
        """Turns sent to each engine."""
        self._last_rank: dict[str, int] = {}
        self.num_moved = 0
        """Turns sent to another engine than the last turn of their job."""
        self.num_resent = 0
        """Turns sent again because their engine failed."""
        for failure in failures:
            timeline.at(failure.at_s, partial(self._fail, failure.rank))
            if failure.recovers_s is not None:
                timeline.at(failure.recovers_s, partial(self._recover, failure.rank))

    def run(self, on_turn_end: Callable[[LiveTurn], None]) -> None:
        """Play until nothing is left; `on_turn_end` gets each turn at the time of its end."""
        self._on_turn_end = on_turn_end
        timeline = self._timeline
        while True:
            view = min(self._up, key=self._wake_s)
            engine, event_s = self.engines[view.rank], timeline.next_s
            if event_s < math.inf and event_s <= engine.wake_s:
                timeline.handle_next()
            elif engine.wake_s < math.inf:
                # With one engine an event may end its jump; with several most are not its own.
                until_s = event_s if len(self.engines) == 1 else math.inf
                ended = engine.run(until_s, blocked_until_s=self._next_change_s(view))
                self._note_ended(view, ended)
            else:
                for stuck in self._up:
                    if self.engines[stuck.rank].is_busy:
                        raise self.engines[stuck.rank].stuck_error()
                return

    def send(self, turn: LiveTurn, request: RoutedRequest) -> None:
        """Route a turn's request, which reaches its engine now."""
        now_s = self._timeline.now_s
        if len(self.engines) > 1 and now_s >= self._polled_s + REPORT_EVERY_S:
            self._poll(now_s)
        rank = self._router.choose(request, self._up, now_s)
        view = self._views[rank]
        self.turns[rank] += 1
        self.num_moved += self._last_rank.get(request.context, rank) != rank
        self._last_rank[request.context] = rank
        view.in_flight[turn.request_id] = (turn, request)
        self._reach(view)
        self.engines[rank].add(turn)

    def signal(self, job_id: str, signal: Callable[[Any], object]) -> None:
        """Hand one engine's scheduler a signal of a job: the one that the router chooses."""
        view = self._views[self._router.choose_for_signal(job_id, self._up)]
        self._reach(view)
        self.engines[view.rank].deliver(signal)

    def reset(self) -> None:
        """Drop all KV of all engines (see `SimulatedEngine.reset`)."""
        for view in self._up:
            self._reach(view)
            self.engines[view.rank].reset()

    @property
    def now_s(self) -> float:
        """Time up to which all has happened."""
        return max(self._timeline.now_s, *(self.engines[view.rank].now_s for view in self._up))

    def counters(self) -> dict[str, Any]:
        """Totals over all engines; of several engines also how turns were spread."""
        totals: dict[str, Any] = {}
        for engine in [*self.engines, *self.replaced]:
            _add(totals, engine.totals())
        if len(self.engines) > 1:
            totals |= {"turns_by_engine": self.turns, "moved_turns": self.num_moved}
            totals |= {"resent_turns": self.num_resent}
        return totals

    def events(self) -> dict[str, Any] | None:
        """The event log, as `GET /v1/agentkv/timestamps` answers; None under the stock scheduler.

        Of an engine that has recovered, the log from then on.
        """
        logs = [engine.events() for engine in self.engines]
        known = [log for log in logs if log is not None]
        return merge_timestamps(known) if known else None

    def _wake_s(self, view: EngineView) -> float:
        return self.engines[view.rank].wake_s

    def _next_change_s(self, view: EngineView) -> float:
        """When an engine that can run nothing looks again: at the next event, of any engine."""
        if self._timeline.next_s < math.inf:
            return self._timeline.next_s
        return min(
            (self._wake_s(other) for other in self._up if other is not view), default=math.inf
        )

    def _reach(self, view: EngineView) -> None:
        self._note_ended(view, self.engines[view.rank].reach(self._timeline.now_s))

    def _note_ended(self, view: EngineView, turns: Sequence[LiveTurn]) -> None:
        for turn in turns:
            assert turn.ended_s is not None
            self._timeline.at(turn.ended_s, partial(self._turn_ended, view, turn))

    def _turn_ended(self, view: EngineView, turn: LiveTurn) -> None:
        under_way = view.in_flight.get(turn.request_id)
        if under_way is None or under_way[0] is not turn:
            return  # the engine failed before the end of this step
        del view.in_flight[turn.request_id]
        self._on_turn_end(turn)

    def _poll(self, now_s: float) -> None:
        self._polled_s = now_s
        for view in self._up:
            engine = self.engines[view.rank]
            view.num_waiting = engine.num_waiting
            view.report = engine.report(self._prefill_s, now_s)

    def _fail(self, rank: int) -> None:
        view = self._views[rank]
        self._up.remove(view)
        lost = list(view.in_flight.values())
        view.in_flight.clear()
        view.report, view.num_waiting = None, 0
        self.num_resent += len(lost)
        sent_s = self._timeline.now_s + self._machine.request_s
        for turn, request in lost:
            self._timeline.at(sent_s, partial(self.send, turn.sent_again(), request))

    def _recover(self, rank: int) -> None:
        self.replaced.append(self.engines[rank])
        self.engines[rank] = self._make_engine(self._timeline.now_s)
        self._up.append(self._views[rank])
        self._up.sort(key=lambda view: view.rank)


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add numbers to those of the same name, also within a name."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(totals.setdefault(name, {}), value)
        else:
            totals[name] = totals.get(name, 0) + value
