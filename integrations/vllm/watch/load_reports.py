"""What data-parallel engines report of their load, and when a job is worth moving for it.

RecentWaits, a watcher of the engine, has what is reported. Prometheus's stat logger receives the
reports; the balancer and the simulator's routers read them. Knows nothing of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentkv.durations.windows import DurationWindow
from agentkv.events import Admitted

WAITS_WINDOW = 20
"""The last waits of returning turns, whose mean is reported to the balancer."""
REPORT_LIFE_S = 30.0
"""Age up to which an engine's report counts; without one, a job stays where it is."""


class RecentWaits:
    """How long turns have lately waited for their first blocks."""

    def __init__(self) -> None:
        self._waits = DurationWindow(WAITS_WINDOW)

    def on_admitted(self, event: Admitted) -> None:
        self._waits.observe(event.waited_s)

    @property
    def mean_s(self) -> float:
        """Seconds on average; 0 before any turn was admitted."""
        return self._waits.mean_s


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one of several data-parallel engines last said of itself."""

    wait_s: float
    """How long returning turns have lately waited for their first blocks, on average."""
    prefill_reload_s: tuple[float, float, float]
    """Seconds of a prefill: constant, per token, per token squared."""
    received_s: float
    """On this process's monotonic clock."""

    def is_fresh(self, now_s: float) -> bool:
        return now_s - self.received_s < REPORT_LIFE_S

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds that the engine takes to compute a prompt of this length."""
        constant_s, linear_s, quadratic_s = self.prefill_reload_s
        return constant_s + (linear_s + quadratic_s * num_tokens) * num_tokens


engine_reports: dict[int, EngineReport] = {}
"""The last report of each engine that this API server has had, by rank."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests in an engine, as its router knows them."""

    num_waiting: float
    num_running: float

    @property
    def num_requests(self) -> float:
        return self.num_waiting + self.num_running


def better_rank(
    rank: int,
    num_tokens: int,
    loads: Mapping[int, EngineLoad],
    reports: Mapping[int, EngineReport],
    now_s: float,
) -> int | None:
    """Return the engine to which a returning turn is worth moving; None to stay on `rank`.

    That is the one with the fewest requests, if nobody waits there, turns wait here, and returning
    turns have lately waited here for longer than they did there and the move costs: all
    `num_tokens` are computed there, for which the requests that run there wait as well. Where turns
    wait on both, memory is short on both: a job that moves then leaves KV behind and needs as much
    again, so that all wait for longer.
    """
    here, others = reports.get(rank), [other for other in loads if other != rank]
    if here is None or not others or not loads[rank].num_waiting or not here.is_fresh(now_s):
        return None
    target = min(others, key=lambda other: loads[other].num_requests)
    there = reports.get(target)
    if there is None or not there.is_fresh(now_s):
        # an engine without requests sends no reports, and makes nobody wait
        there = None if loads[target].num_requests else replace(here, wait_s=0.0)
    if there is None or loads[target].num_waiting:
        return None
    cost_s = there.prefill_s(num_tokens) * (1 + loads[target].num_running)
    return target if here.wait_s > there.wait_s + cost_s else None
