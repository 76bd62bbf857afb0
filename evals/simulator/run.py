"""Plays one workload on one simulated server, or several behind a router, under one policy.

Called by the command and by studies. Connects agents and engines on one timeline; knows nothing of
files or flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentkv.errors import InputError
from agentkv.policies.names import PolicyChoice

from ..outcomes import JobOutcome
from ..workload.plans import Workload, with_children
from .agents import Agents, Replies, Timeline
from .dram_tier import CONNECTOR, DramTier
from .engine import SimulatedEngine
from .fleet import Fleet, FleetPlan
from .machine import DEFAULT_DRAM_GIB, GIB, MAX_BLOCKS, Machine
from .plugin import make_scheduler, merge_events
from .turns import LiveTurn


@dataclass(frozen=True, slots=True)
class RunOptions:
    """With jumps or step by step, DRAM of an offload tier, events of the event log to keep; whether
    clients tag their requests and report tools; several engines with their router."""

    has_jumps: bool = True
    dram_gib: float = DEFAULT_DRAM_GIB
    record_events: int = 0
    has_tags: bool = True
    fleet: FleetPlan | None = None


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """Results of a run: the jobs, in the order they ended, and the counters.

    `record` is the answer of `GET /v1/agentkv/timestamps`; None under the stock scheduler.
    """

    jobs: tuple[JobOutcome, ...]
    counters: dict[str, Any]
    record: dict[str, Any] | None


OnJobEnd = Callable[[JobOutcome, int], None]
"""Called with each job, and how many have ended, without those that others started."""


class Simulation:
    """One run. If `run` is interrupted, `result` holds what there is.

    One engine takes turns and signals from the agents; several do so through a `fleet`.
    """

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        policy: PolicyChoice,
        options: RunOptions | None = None,
        *,
        alone_s: Mapping[str, float] | None = None,
    ) -> None:
        """`alone_s` has the seconds that each job takes alone."""
        options = options or RunOptions()
        if policy.is_infinite:
            machine = replace(machine, num_blocks=_blocks_for_all(workload, machine))
        settings = policy.engine_settings
        if settings is not None:
            # commands too: the log is a workload that can be played again
            recorded = {"record_events": options.record_events, "show_commands": True}
            settings = {**settings, **recorded}
        self.machine = machine
        self._policy = policy
        self._settings = settings
        self._options = options
        self._jobs: list[JobOutcome] = []
        self._num_ended = 0
        self._alone_s = alone_s or {}
        self._on_job_end: OnJobEnd | None = None
        self._replies = Replies()
        self._timeline = Timeline()
        self.fleet = self._make_fleet()
        self.engine = (
            self.fleet.engines[0] if self.fleet else self._make_engine(0.0, self._turn_ended)
        )
        self._agents = Agents(
            workload,
            machine,
            self.fleet or self.engine,
            self._timeline,
            self._replies,
            has_tags=options.has_tags,
            settings=settings,
            on_job_end=self._job_ended,
        )

    def _make_fleet(self) -> Fleet | None:
        """The engines and their router; None for one engine."""
        plan = self._options.fleet
        if plan is None or plan.engines == 1:
            return None
        return Fleet(plan, self.machine, self._make_engine, self._timeline, self._turn_ended)

    def _make_engine(self, now_s: float, on_end: Callable[[LiveTurn], None]) -> SimulatedEngine:
        """An engine whose clock stands at `now_s`; `on_end` gets turns at the time of their end."""
        machine, options, has_offload = self.machine, self._options, self._policy.has_offload

        def at_its_end(turn: LiveTurn) -> None:
            assert turn.ended_s is not None
            self._timeline.at(turn.ended_s, partial(on_end, turn))

        def scheduler(clock: Callable[[], float]) -> Any:
            return make_scheduler(
                machine,
                self._settings,
                clock=clock,
                decode=self._replies.decode,
                connector=CONNECTOR if has_offload else None,
            )

        engine = SimulatedEngine(
            machine, scheduler, at_its_end, now_s=now_s, has_jumps=options.has_jumps
        )
        if has_offload:
            tier = DramTier(_dram_blocks(machine, options.dram_gib))
            engine.scheduler.connector.configure(tier, machine.block_tokens)
        return engine

    def run(self, *, on_job_end: OnJobEnd | None = None) -> SimulatedRun:
        """Play all jobs to their end: what is due first, an event or an engine's next step."""
        self._on_job_end = on_job_end
        timeline, engine = self._timeline, self.engine
        while True:
            if self.fleet is not None:
                engine = min(self.fleet.up, key=lambda engine: engine.wake_s)
            event_s, wake_s = timeline.next_s, engine.wake_s
            if event_s < math.inf and event_s <= wake_s:
                timeline.handle_next()
            elif wake_s < math.inf:
                self._step(engine, event_s)
            else:
                break
        stuck = next((engine for engine in self._up if engine.turns), None)
        if stuck is not None:
            raise stuck.stuck_error()
        return self.result()

    def _step(self, engine: SimulatedEngine, event_s: float) -> None:
        """Let the engine do its next step; if it can run nothing, it looks again at the next event.

        With one engine an event may end its jump; with several most are not its own, and a step of
        another one may be what it waits for.
        """
        if self.fleet is None:
            engine.run(event_s, blocked_until_s=event_s)
            return
        next_s = event_s
        if event_s == math.inf:
            others = (other.wake_s for other in self.fleet.up if other is not engine)
            next_s = min(others, default=math.inf)
        engine.run(math.inf, blocked_until_s=next_s)

    @property
    def _up(self) -> list[SimulatedEngine]:
        return [self.engine] if self.fleet is None else self.fleet.up

    def result(self) -> SimulatedRun:
        """Results so far; jobs under way count as cut."""
        now_s = self.now_s
        cut = [job.outcome(now_s, "cut") for job in self._agents.running.values()]
        engines, counters = [self.engine], {}
        if self.fleet is not None:
            engines, counters = self.fleet.engines, self.fleet.counters
        totals: dict[str, Any] = {}
        for engine in [*engines, *(self.fleet.replaced if self.fleet else ())]:
            _add(totals, engine.totals())
        record = merge_events([engine.plugin.events() for engine in engines])
        counters = {**totals, **counters, "virtual_s": now_s}
        return SimulatedRun(tuple(self._jobs + cut), counters, record)

    @property
    def num_arrived(self) -> int:
        return self._agents.num_arrived

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since the start, up to which all has happened."""
        return max(self._timeline.now_s, *(engine.now_s for engine in self._up))

    def _turn_ended(self, turn: LiveTurn) -> None:
        self._agents.turn_ended(turn)

    def _job_ended(self, job: JobOutcome) -> None:
        job = replace(job, alone_s=self._alone_s.get(job.job_id))
        self._jobs.append(job)
        self._num_ended += job.role != "sub-agent"
        if self._on_job_end is not None:
            self._on_job_end(job, self._num_ended)


def _add(totals: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add numbers to those of the same name, also within a name."""
    for name, value in more.items():
        if isinstance(value, dict):
            _add(totals.setdefault(name, {}), value)
        else:
            totals[name] = totals.get(name, 0) + value


def check_pool(workload: Workload, machine: Machine, policy: PolicyChoice, dram_gib: float) -> None:
    """Raise InputError for a pool or tier that this policy cannot have here."""
    if policy.is_infinite:
        _blocks_for_all(workload, machine)
    if policy.has_offload:
        _dram_blocks(machine, dram_gib)


def _dram_blocks(machine: Machine, dram_gib: float) -> int:
    if machine.num_state_groups:
        raise InputError(f"+offload: the tier has no recurrent states, which {machine.model} needs")
    if not machine.block_bytes:
        raise InputError(
            "+offload: the profile does not say how large the KV of a token is; "
            'set "kv_token_bytes" in it'
        )
    return int(dram_gib * GIB / machine.block_bytes)


def _blocks_for_all(workload: Workload, machine: Machine) -> int:
    """A pool that holds every context of the run at once, so that nothing is ever evicted."""
    jobs, num_states = with_children(workload.jobs), 2 * machine.num_state_groups
    num_blocks = 2 + sum(
        job.context_tokens // machine.block_tokens + 1 + num_states for job in jobs
    )
    if num_blocks > MAX_BLOCKS:
        raise InputError(
            f"@infinite: {num_blocks:,} blocks for all contexts of the run, allowed are "
            f"{MAX_BLOCKS:,}; use fewer --jobs or --max-turns"
        )
    return max(num_blocks, machine.num_blocks)
