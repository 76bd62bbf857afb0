"""Plays one workload on one simulated server, or several behind a router, under one policy.

Called by the command and by studies. Connects agents and engines on one timeline; knows nothing of
files or flags.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentkv.errors import InputError
from agentkv.policies.names import PolicyChoice
from agentkv.testing.vllm_scheduler import SchedulerShape, build_scheduler, quiet_vllm

from ..outcomes import JobOutcome
from ..workload.plans import Workload, with_children
from .agents import Agents, Replies
from .dram_tier import CONNECTOR, DramTier
from .engine import SimulatedEngine, VirtualClock
from .fleet import Fleet, Timeline
from .machine import DEFAULT_DRAM_GIB, GIB, MAX_BLOCKS, Failure, Machine
from .routers import ROUTERS


@dataclass(frozen=True, slots=True)
class RunOptions:
    """With jumps or step by step, DRAM of an offload tier, events of the event log to keep; whether
    clients tag their requests and report tools; engines, their router and their failures.

    `policy_class` replaces the class of the plugin's policy, for studies.
    """

    has_jumps: bool = True
    dram_gib: float = DEFAULT_DRAM_GIB
    record_events: int = 0
    has_tags: bool = True
    policy_class: Callable[..., Any] | None = None
    num_engines: int = 1
    router: str = "round-robin"
    failures: tuple[Failure, ...] = ()


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
    """One run. If `run` is interrupted, `result` holds what there is."""

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
            settings = {**settings, "record_events": options.record_events}
        self.machine = machine
        self._jobs: list[JobOutcome] = []
        self._num_ended = 0
        self._alone_s = alone_s or {}
        self._on_job_end: OnJobEnd | None = None
        self._policy = policy
        self._settings = settings
        self._options = options
        self._replies = Replies()
        quiet_vllm()
        self._timeline = Timeline()
        self.fleet = Fleet(
            options.num_engines,
            machine,
            self._make_engine,
            ROUTERS[options.router](),
            self._timeline,
            options.failures,
        )
        self.engine = self.fleet.engines[0]
        self._agents = Agents(
            workload,
            machine,
            self.fleet,
            self._timeline,
            self._replies,
            has_tags=options.has_tags,
            has_plugin=settings is not None,
            on_job_end=self._job_ended,
            weights=None if settings is None else settings.get("client_weights", {}),
        )

    def _make_engine(self, now_s: float) -> SimulatedEngine:
        machine, options, clock = self.machine, self._options, VirtualClock()
        clock.now_s = now_s
        scheduler = build_scheduler(
            SchedulerShape(
                num_blocks=machine.num_blocks,
                block_tokens=machine.block_tokens,
                max_num_seqs=machine.max_num_seqs,
                max_num_batched_tokens=machine.max_num_batched_tokens,
                max_model_tokens=machine.max_model_tokens,
                settings=self._settings,
                connector=CONNECTOR if self._policy.has_offload else None,
            ),
            clock=clock,
            decode=self._replies.decode,
            policy_class=options.policy_class,
        )
        retention = getattr(scheduler, "retention", None)
        if retention is not None:
            # Where time is virtual, how busy this machine is must not switch a policy off.
            retention.policy.max_answer_s = math.inf
        if self._policy.has_offload:
            tier = DramTier(_dram_blocks(machine, options.dram_gib))
            scheduler.connector.configure(tier, machine.block_tokens)
        return SimulatedEngine(machine, scheduler, clock, has_jumps=options.has_jumps)

    def run(self, *, on_job_end: OnJobEnd | None = None) -> SimulatedRun:
        """Play all jobs to their end."""
        self._on_job_end = on_job_end
        self.fleet.run(self._agents.turn_ended)
        return self.result()

    def result(self) -> SimulatedRun:
        """Results so far; jobs under way count as cut."""
        now_s = self.fleet.now_s
        cut = [job.outcome(now_s, "cut") for job in self._agents.running.values()]
        counters = self.fleet.counters()
        return SimulatedRun(
            tuple(self._jobs + cut), {**counters, "virtual_s": now_s}, self.fleet.events()
        )

    @property
    def num_arrived(self) -> int:
        return self._agents.num_arrived

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self.fleet.now_s

    def _job_ended(self, job: JobOutcome) -> None:
        job = replace(job, alone_s=self._alone_s.get(job.job_id))
        self._jobs.append(job)
        self._num_ended += job.role != "sub-agent"
        if self._on_job_end is not None:
            self._on_job_end(job, self._num_ended)


def check_pool(workload: Workload, machine: Machine, policy: PolicyChoice, dram_gib: float) -> None:
    """Raise InputError for a pool or tier that this policy cannot have here."""
    if policy.is_infinite:
        _blocks_for_all(workload, machine)
    if policy.has_offload:
        _dram_blocks(machine, dram_gib)


def _dram_blocks(machine: Machine, dram_gib: float) -> int:
    if not machine.block_bytes:
        raise InputError(
            "+offload: the profile does not say how large the KV of a token is; "
            'set "kv_token_bytes" in it'
        )
    return int(dram_gib * GIB / machine.block_bytes)


def _blocks_for_all(workload: Workload, machine: Machine) -> int:
    """A pool that holds every context of the run at once, so that nothing is ever evicted."""
    jobs = with_children(workload.jobs)
    num_blocks = 2 + sum(job.context_tokens // machine.block_tokens + 1 for job in jobs)
    if num_blocks > MAX_BLOCKS:
        raise InputError(
            f"@infinite: {num_blocks:,} blocks for all contexts of the run, allowed are "
            f"{MAX_BLOCKS:,}; use fewer --jobs or --max-turns"
        )
    return max(num_blocks, machine.num_blocks)
