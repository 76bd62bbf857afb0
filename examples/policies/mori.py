"""When memory runs short the jobs that idle most leave it, and those that idle least return first.

Source: MORI (arXiv 2606.00866), as a detailed review and a reproduction plan report it; its code is
not released. A job's idleness is its time in tools over its time in tools and in the model, over
its last 5 cycles, the present call included and time in the queue left out. Every 5 s, if contexts
exceed the pool, jobs leave: those whose tool runs first, the most idle first; one that the model
serves leaves when its turn ends. If there is room they return: those whose KV still is in memory,
then the others; inside a class the least idle, then the smallest.

Left open: where a job's KV goes when it leaves. The CPU tier is the engine's own (`+offload`), so
leaving means that its pin is the first to yield. Idleness without any cycle counts as 0.
Not in it: typed eviction inside the CPU tier (the two notes disagree on its order), promotion ahead
of the return, and several replicas.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from agentkv.policies import (
    TTL,
    AdmissionRequest,
    AllocationRequest,
    Job,
    Pin,
    Policy,
    RestoreCost,
    Settings,
    Turn,
)

CYCLES = 5


class MoriSettings(Settings):
    force_resume_s: float = Field(1800.0, gt=0)
    """Seconds after which a turn of a job that has left is let in all the same."""


class Mori(Policy):
    """Keeps the KV of busy jobs; those that idle give way."""

    settings_class = MoriSettings
    settings: MoriSettings
    tick_s = 5.0

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        self.max_wait_s = self.settings.force_resume_s
        self.out: set[str] = set()
        self.marked: set[str] = set()
        """Jobs that leave when their turn ends."""
        self._cycles: defaultdict[str, deque[tuple[float, float]]] = defaultdict(
            lambda: deque(maxlen=CYCLES)
        )
        """(tool, model) seconds of each job's last cycles."""
        self._finished_s: dict[str, float] = {}

    def idleness(self, job: Job) -> float:
        cycles = self._cycles.get(job.job_id, ())
        tool_s, model_s = sum(each[0] for each in cycles), sum(each[1] for each in cycles)
        if not job.live and job.finished_s is not None:
            tool_s += self.engine.now_s - job.finished_s
        return tool_s / (tool_s + model_s) if tool_s + model_s > 0 else 0.0

    def context_of(self, job: Job) -> int:
        return max([job.context_tokens, *(turn.num_prompt_tokens for turn in job.live.values())])

    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        return self.capped(float("inf"), "pinned until memory runs short")

    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Pins of jobs that have left yield first, then those of the idlest."""

        def claim(pin: Pin[Any]) -> tuple[bool, float]:
            job = self.engine.job(pin.job_id)
            return pin.job_id not in self.out, -self.idleness(job) if job is not None else -1.0

        return sorted(pins, key=claim)

    def tick(self) -> bool:
        for job in self.engine.jobs:  # let in after the limit, or because nothing ran
            if any(turn.admitted_s is not None for turn in job.live.values()):
                self.out.discard(job.job_id)
        left_out = self.out | self.marked
        jobs = [job for job in self.engine.jobs if job.has_run and job.job_id not in left_out]
        used_tokens = sum(map(self.context_of, jobs))
        for job in sorted(jobs, key=lambda job: (bool(job.live), -self.idleness(job))):
            if used_tokens <= self.pool_tokens:
                break
            used_tokens -= self.context_of(job)
            (self.marked if job.live else self.out).add(job.job_id)
        self.bring_back(used_tokens)
        return False

    def bring_back(self, used_tokens: int) -> None:
        held = {pin.job_id for pin in self.engine.pins}
        waiting = [turn.job for turn in self.engine.turns if turn.job.job_id in self.out]

        def claim(job: Job) -> tuple[bool, float, int]:
            return job.job_id not in held, self.idleness(job), self.context_of(job)

        for job in sorted(waiting, key=claim):
            used_tokens += self.context_of(job)
            if used_tokens > self.pool_tokens:
                return
            self.out.discard(job.job_id)

    def why_wait(self, turn: Turn) -> str | None:
        return "its job has left memory" if turn.job.job_id in self.out else None

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        turn, engine = request.turn, self.engine
        if turn is None or engine.now_s - turn.arrived_s >= self.max_wait_s:
            return None
        if any(other.job.job_id in self.out for other in engine.turns):
            return "a returning turn waits"
        jobs = [job for job in engine.jobs if job.has_run and job.job_id not in self.out]
        needed = sum(map(self.context_of, jobs)) + turn.num_prompt_tokens
        return "it does not fit" if needed > self.pool_tokens else None

    def turn_finished(self, turn: Turn, served_s: float) -> None:
        job_id = turn.job.job_id
        tool_s = max(0.0, turn.arrived_s - self._finished_s.get(job_id, turn.arrived_s))
        self._cycles[job_id].append((tool_s, served_s))
        self._finished_s[job_id] = self.engine.now_s
        if job_id in self.marked and not turn.job.live:
            self.marked.discard(job_id)
            self.out.add(job_id)

    def job_ended(self, job: Job) -> None:
        for known in (self.out, self.marked):
            known.discard(job.job_id)
        self._cycles.pop(job.job_id, None)
        self._finished_s.pop(job.job_id, None)
