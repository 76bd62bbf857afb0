"""The simulator's door to the plugin: schedulers are built, signalled and read here, nowhere else.

Imports vLLM. A stock scheduler has no plugin: it reports nothing and takes no signals.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from agentkv.integrations.vllm.api import engine_side
from agentkv.integrations.vllm.api.balancer import EngineTable, rank_for
from agentkv.integrations.vllm.api.engine_client import merge_timestamps
from agentkv.integrations.vllm.watch.load_reports import EngineLoad, EngineReport

from .fleet import Sticky, Upstream
from .machine import Machine
from .turns import LiveTurn
from .vllm_scheduler import SchedulerShape, build_scheduler, quiet_vllm

WAITS_REPORTED = 20
"""Returning turns whose waits a stock engine's report averages, as many as the plugin's."""


def make_scheduler(
    machine: Machine,
    settings: Mapping[str, Any] | None,
    *,
    clock: Callable[[], float],
    decode: Callable[[list[int]], str],
    connector: Mapping[str, Any] | None = None,
) -> Any:
    """A scheduler of this machine with the plugin's settings; None for vLLM's own.

    Where time is virtual, a policy may take as long to answer as it likes.
    """
    quiet_vllm()
    shape = SchedulerShape(
        num_blocks=machine.num_blocks,
        block_tokens=machine.block_tokens,
        max_num_seqs=machine.max_num_seqs,
        max_num_batched_tokens=machine.max_num_batched_tokens,
        max_model_tokens=machine.max_model_tokens,
        num_state_groups=machine.num_state_groups,
        settings=settings,
        connector=connector,
    )
    scheduler = build_scheduler(shape, clock=clock, decode=decode)
    if settings is not None:
        scheduler.retention.policy.guard.max_answer_s = math.inf
    return scheduler


class Plugin:
    """What the plugin in one engine's scheduler says."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._retention = getattr(scheduler, "retention", None)
        self._waits_s: deque[float] = deque(maxlen=WAITS_REPORTED)

    @property
    def next_expiry_s(self) -> float:
        """Time at which the next pin expires; infinity without pins."""
        expiry_s = None if self._retention is None else self._retention.pins.next_expiry_s
        return math.inf if expiry_s is None else float(expiry_s)

    @property
    def next_tick_s(self) -> float:
        """Time at which the policy looks at its jobs again; infinity without such a time."""
        return math.inf if self._retention is None else float(self._retention.admission.next_tick_s)

    def totals(self) -> dict[str, Any]:
        """The plugin's counters."""
        return {} if self._retention is None else dict(self._scheduler.watchers.counters.totals())

    def events(self) -> dict[str, Any] | None:
        """The plugin's event log, as `GET /v1/agentkv/timestamps` answers."""
        return None if self._retention is None else dict(self._scheduler.watchers.log.as_dict())

    def signal(self, op: str, job_key: str, *args: Any) -> None:
        """Hand it a tool event ("tool") or the release of a job ("release")."""
        engine_side.call(self._scheduler, op, [job_key, *args])

    def returning_turn_waited(self, wait_s: float) -> None:
        """Note the wait of a job's later turn, for the report of a stock engine."""
        self._waits_s.append(wait_s)

    def report(self, prefill_s: tuple[float, float, float], now_s: float) -> EngineReport:
        """The engine's report to the balancer; a stock engine's prefills take `prefill_s`."""
        if self._retention is None:
            return EngineReport(fmean(self._waits_s or [0.0]), prefill_s, now_s)
        wait_s, learned_s = self._scheduler.gauges.load_report()
        return EngineReport(wait_s, tuple(learned_s), now_s)


def merge_events(logs: Sequence[dict[str, Any] | None]) -> dict[str, Any] | None:
    """One event log of several engines; None under the stock scheduler."""
    known = [log for log in logs if log is not None]
    return merge_timestamps(known) if known else None


class StickySpill(Sticky):
    """The plugin's own balancer, with its table: sticky, unless moving is expected to be faster."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._table = EngineTable.of_this_process(lambda: self._now_s)

    def choose(self, turn: LiveTurn, engines: Sequence[Upstream], now_s: float) -> int:
        if turn.job_key is None:
            return self.next_of(engines)
        self._now_s = now_s
        loads, reports = {}, {}
        for engine in engines:
            num_waiting = min(engine.num_waiting, len(engine.in_flight))
            loads[engine.rank] = EngineLoad(num_waiting, len(engine.in_flight) - num_waiting)
            if engine.report is not None:
                reports[engine.rank] = engine.report
        asked = (turn.job_key, turn.parent_key, turn.prompt_tokens)
        rank = rank_for(self._table, *asked, loads, reports, now_s)
        if rank is None:
            rank = self.next_of(engines)
        self._table.put(turn.job_key, rank)
        return rank

    def choose_for_signal(self, job_key: str, engines: Sequence[Upstream]) -> int:
        return self.if_up(self._table.get(job_key), engines)
