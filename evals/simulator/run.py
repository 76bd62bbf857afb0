"""Plays a workload on a simulated engine under each policy: agents and engine on one timeline.

Imports vLLM.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentkv.errors import InputError
from agentkv.policies.names import PolicyChoice

from ..outcomes import JobOutcome, RunOutcome
from ..progress import progress
from ..rows import RUN_FILE, TURNS_FILE, RunWriter, require_free, row_facts
from ..workload.plans import Workload, with_children
from .agents import Agents, Replies, Timeline
from .alone import alone_s
from .dram_tier import CONNECTOR, DramTier
from .engine import SimulatedEngine
from .machine import GIB, MAX_BLOCKS, Machine
from .plan import RunOptions, SimulationPlan
from .turns import LiveTurn
from .vllm_scheduler import VLLM_VERSION, SchedulerShape, build_scheduler, quiet_vllm


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
    """One run."""

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
        self.engine = self._make_engine()
        self._agents = Agents(
            workload,
            machine,
            self.engine,
            self._timeline,
            self._replies,
            has_tags=options.has_tags,
            settings=settings,
            on_job_end=self._job_ended,
        )

    def _make_engine(self) -> SimulatedEngine:
        machine, options, has_offload = self.machine, self._options, self._policy.has_offload

        shape = SchedulerShape(
            num_blocks=machine.num_blocks,
            block_tokens=machine.block_tokens,
            max_num_seqs=machine.max_num_seqs,
            max_num_batched_tokens=machine.max_num_batched_tokens,
            max_model_tokens=machine.max_model_tokens,
            num_state_groups=machine.num_state_groups,
            settings=self._settings,
            connector=CONNECTOR if has_offload else None,
        )

        def scheduler(clock: Callable[[], float]) -> Any:
            made = build_scheduler(shape, clock=clock, decode=self._replies.decode)
            if self._settings is not None:
                # where time is virtual a policy may take as long to answer as it likes
                made.retention.policy.guard.max_answer_s = math.inf
            return made

        quiet_vllm()

        engine = SimulatedEngine(machine, scheduler, self._turn_ran, has_jumps=options.has_jumps)
        if has_offload:
            tier = DramTier(_dram_blocks(machine, options.dram_gib))
            engine.scheduler.connector.configure(tier, machine.block_tokens)
        return engine

    def _turn_ran(self, turn: LiveTurn) -> None:
        """Hand a turn to its agent at the time of its end, which may lie ahead of the timeline."""
        assert turn.ended_s is not None
        self._timeline.at(turn.ended_s, partial(self._agents.turn_ended, turn))

    def run(self, *, on_job_end: OnJobEnd | None = None) -> SimulatedRun:
        """Play all jobs to their end: what is due first, an event or the engine's next step.

        Raises RunError if turns wait for memory that nothing will free.
        """
        self._on_job_end = on_job_end
        timeline, engine = self._timeline, self.engine
        while True:
            event_s, wake_s = timeline.next_s, engine.wake_s
            if event_s < math.inf and event_s <= wake_s:
                timeline.handle_next()
            elif wake_s < math.inf:
                engine.run(event_s, blocked_until_s=event_s)
            else:
                break
        if engine.turns:
            raise engine.stuck_error()
        counters = {**self.engine.totals(), "virtual_s": self.now_s}
        return SimulatedRun(tuple(self._jobs), counters, engine.events())

    @property
    def num_arrived(self) -> int:
        return self._agents.num_arrived

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since the start, up to which all has happened."""
        return max(self._timeline.now_s, self.engine.now_s)

    def _job_ended(self, job: JobOutcome) -> None:
        job = replace(job, alone_s=self._alone_s.get(job.job_id))
        self._jobs.append(job)
        self._num_ended += job.role != "sub-agent"
        if self._on_job_end is not None:
            self._on_job_end(job, self._num_ended)


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
            f"{MAX_BLOCKS:,}; use fewer --jobs or --turns"
        )
    return max(num_blocks, machine.num_blocks)


def play(plan: SimulationPlan) -> list[RunOutcome]:
    """Each policy's run, its rows on disk as jobs end.

    Raises InputError before the first job is played, RunError and OSError in the midst of it.
    """
    for policy in plan.policies:
        folder = plan.folder_of(policy)
        for name in (RUN_FILE, TURNS_FILE):
            if folder is not None:
                require_free(folder / name, force=plan.is_forced)
        if policy.is_infinite:
            _blocks_for_all(plan.workload, plan.machine)
        if policy.has_offload:
            _dram_blocks(plan.machine, plan.options.dram_gib)
    jobs = with_children(plan.workload.jobs)
    alone = {job.job_id: alone_s(job, plan.machine) for job in jobs}
    return [_play_policy(plan, policy, alone) for policy in plan.policies]


def _play_policy(
    plan: SimulationPlan, policy: PolicyChoice, alone: Mapping[str, float]
) -> RunOutcome:
    """Play all jobs; show how far they are, and write their rows as they end."""
    metadata, name = plan.metadata(VLLM_VERSION), policy.name
    simulation = Simulation(plan.workload, plan.machine, policy, plan.options, alone_s=alone)
    facts, folder = row_facts(name, plan.described, metadata), plan.folder_of(policy)
    writer = None if folder is None else RunWriter(folder, facts, force=plan.is_forced)
    with writer or nullcontext(), progress(name, len(plan.workload.jobs), "jobs") as show:

        def job_ended(job: JobOutcome, num_ended: int) -> None:
            if writer is not None:
                writer.add_job(job)
            num_running = simulation.num_arrived - num_ended
            show(num_ended, f"{num_running} running, {simulation.now_s:.0f} s are simulated")

        result, machine = simulation.run(on_job_end=job_ended), simulation.machine.as_dict()
        metadata |= {"machine": machine, "num_blocks": machine["num_blocks"]}
        run = RunOutcome(name, plan.described, result.jobs, result.counters, metadata)
        if writer is not None:
            has_events = result.record is not None and result.record["jobs"]
            writer.finish(run, result.record if has_events else None)
    failed = [job for job in run.jobs if job.status == "failed"]
    if failed:
        print(
            f"agentkv simulate: {name}: {len(failed)} of {len(run.jobs)} jobs failed, the first "
            f"because of {failed[0].turns[-1].error}; --max-context-tokens keeps jobs short",
            file=sys.stderr,
        )
    return run
