"""Plays one workload on one simulated server under one policy."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentkv.testing.vllm_scheduler import SchedulerShape, build_scheduler, quiet_vllm

from ..outcomes import JobOutcome
from ..workload.plans import Workload
from .agents import Agents, Replies, outcome
from .dram_tier import CONNECTOR, DramTier
from .engine import SimulatedEngine, VirtualClock
from .machine import DEFAULT_DRAM_GIB, GIB, MAX_BLOCKS, Machine, SimulationError
from .policies import PolicyChoice

_NO_TIME_BYTES_S = 1e18
"""A link for which no load takes time worth telling: a context of 40 GB in 40 ns."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to simulate: with jumps or step by step, DRAM of an offload tier, events to keep."""

    has_jumps: bool = True
    dram_gib: float = DEFAULT_DRAM_GIB
    record_events: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came out: the jobs, in the order they ended, and the engine's counters.

    `record` is what `GET /v1/agentkv/timestamps` would answer; None under the stock scheduler.
    """

    jobs: tuple[JobOutcome, ...]
    counters: dict[str, Any]
    record: dict[str, Any] | None


OnJobEnd = Callable[[JobOutcome, int], None]


class Simulation:
    """One run; `run` may be interrupted, `result` then holds what there is."""

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        policy: PolicyChoice,
        options: RunOptions | None = None,
        *,
        alone_s: Mapping[str, float] | None = None,
    ) -> None:
        """`alone_s` says of jobs how long they take alone."""
        options = options or RunOptions()
        if policy.is_infinite:
            machine = machine.with_blocks(_blocks_for_all(workload, machine))
        if policy.is_lossless:
            machine = replace(machine, pcie_bytes_s=_NO_TIME_BYTES_S)
        self.machine = machine
        self._jobs: list[JobOutcome] = []
        self._alone_s = alone_s or {}
        self._on_job_end: OnJobEnd | None = None
        self._clock = VirtualClock()
        replies = Replies()
        quiet_vllm()
        with tempfile.TemporaryDirectory(prefix="agentkv-simulate-") as folder:
            self._scheduler = build_scheduler(
                _shape(machine, policy, options),
                Path(folder),
                clock=self._clock,
                decode=replies.decode,
            )
        if policy.has_offload:
            self._add_tier(_dram_blocks(machine, options.dram_gib))
        elif policy.is_lossless:
            self._add_tier(sys.maxsize)
        self.engine = SimulatedEngine(
            machine, self._scheduler, self._clock, has_jumps=options.has_jumps
        )
        self._agents = Agents(
            workload,
            machine,
            self.engine,
            replies,
            has_plugin=policy.settings is not None,
            on_job_end=self._job_ended,
        )

    def _add_tier(self, num_blocks: int) -> None:
        self._scheduler.connector.configure(DramTier(num_blocks), self.machine.block_tokens)

    def run(self, *, on_job_end: OnJobEnd | None = None) -> SimulatedRun:
        """Play all jobs to their end; `on_job_end` hears of each, and how many have ended."""
        self._on_job_end = on_job_end
        agents, engine, clock = self._agents, self.engine, self._clock
        while True:
            agents.do_what_is_due(clock.now_s)
            if engine.is_busy:
                for turn in engine.step(agents.next_event_s):
                    agents.turn_ended(turn)
            elif agents.next_event_s < float("inf"):
                self._pass_idle_time(agents.next_event_s)
            else:
                return self.result()

    def _pass_idle_time(self, until_s: float) -> None:
        expiry_s = self.engine.next_expiry_s
        self._clock.now_s = max(self._clock.now_s, min(until_s, expiry_s))
        if expiry_s <= until_s:
            self.engine.expire_pins()

    def result(self) -> SimulatedRun:
        """What has come out so far; jobs under way count as cut."""
        now_s = self._clock.now_s
        cut = [outcome(job, now_s, "cut") for job in self._agents.running.values()]
        retention = getattr(self._scheduler, "retention", None)
        totals = {} if retention is None else retention.counters.totals()
        return SimulatedRun(
            tuple(self._jobs + cut),
            {**self.engine.counters.as_dict(), "virtual_s": now_s, **totals},
            None if retention is None else retention.record.as_dict(),
        )

    @property
    def num_arrived(self) -> int:
        return self._agents.num_arrived

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self._clock.now_s

    def _job_ended(self, job: JobOutcome) -> None:
        job = replace(job, alone_s=self._alone_s.get(job.job_id))
        self._jobs.append(job)
        if self._on_job_end is not None:
            self._on_job_end(job, len(self._jobs))


def _shape(machine: Machine, policy: PolicyChoice, options: RunOptions) -> SchedulerShape:
    settings = policy.settings
    if settings is not None:
        settings = {**settings, "record_events": options.record_events}
    return SchedulerShape(
        num_blocks=machine.num_blocks,
        block_tokens=machine.block_tokens,
        max_num_seqs=machine.max_num_seqs,
        max_num_batched_tokens=machine.max_num_batched_tokens,
        max_model_tokens=machine.max_model_tokens,
        settings=settings,
        connector=CONNECTOR if policy.has_offload or policy.is_lossless else None,
    )


def check_pool(workload: Workload, machine: Machine, policy: PolicyChoice, dram_gib: float) -> None:
    """Raise SimulationError for a pool or tier that this policy cannot have here."""
    if policy.is_infinite:
        _blocks_for_all(workload, machine)
    if policy.has_offload:
        _dram_blocks(machine, dram_gib)


def _dram_blocks(machine: Machine, dram_gib: float) -> int:
    if not machine.block_bytes:
        raise SimulationError(
            "+offload: the profile does not say how large the KV of a token is; "
            'set "kv_token_bytes" in it'
        )
    return int(dram_gib * GIB / machine.block_bytes)


def _blocks_for_all(workload: Workload, machine: Machine) -> int:
    """A pool that holds every context of the run at once, so that nothing is ever evicted."""
    num_blocks = 2 + sum(job.context_tokens // machine.block_tokens + 1 for job in workload.jobs)
    if num_blocks > MAX_BLOCKS:
        raise SimulationError(
            f"@infinite: {num_blocks:,} blocks for all contexts of the run, allowed are "
            f"{MAX_BLOCKS:,}; use fewer --jobs or --max-turns"
        )
    return max(num_blocks, machine.num_blocks)
