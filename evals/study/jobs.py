"""The jobs of a study's units: each set is made once in a process, only its arrivals change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..simulation.alone import alone_s
from ..simulation.machine import Machine
from ..workload.jobs import TOOLS
from ..workload.plans import Workload, arrival_times_s
from ..workload.workloads import make_workload
from .capacity import Footprint, mean_footprint
from .units import Unit

FOOTPRINT_JOBS, FOOTPRINT_SEED = 200, 0
"""The jobs that 1x is computed from, whatever a study's seeds and number of jobs."""


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where jobs come from; `trace` holds those of the study's part alone."""

    workload: str
    trace: Path | None
    num_jobs: int
    max_turns: int | None
    max_context_tokens: int | None

    def make(self, tools: str, seed: int, num_jobs: int | None = None) -> Workload:
        """The jobs without their arrivals; `tools` is a name or a trace file's path."""
        return make_workload(
            self.workload,
            seed=seed,
            num_jobs=num_jobs or self.num_jobs,
            concurrency=1,
            max_turns=self.max_turns,
            tools=tools if tools in TOOLS else Path(tools),
            trace=self.trace,
            max_context_tokens=self.max_context_tokens,
        )

    def footprint(self, tools: str, machine: Machine) -> Footprint:
        """What the mean job with such tools takes of the machine."""
        jobs = self.make(tools, FOOTPRINT_SEED, FOOTPRINT_JOBS).jobs
        return mean_footprint(jobs, machine)


class JobStore:
    """Keeps the jobs made last, and how long each takes alone."""

    def __init__(self, source: JobSource) -> None:
        self._source = source
        self._place: tuple[str, int] | None = None
        self._jobs: Workload
        self._alone_s: dict[str, float]

    def workload(self, unit: Unit, machine: Machine) -> tuple[Workload, dict[str, float]]:
        """A unit's jobs as they arrive, and the seconds each takes alone on this machine."""
        if self._place != (unit.tools, unit.seed):
            self._jobs = self._source.make(unit.tools, unit.seed)
            # a pool of another size changes nothing for a job alone
            self._alone_s = {job.job_id: alone_s(job, machine) for job in self._jobs.jobs}
            self._place = (unit.tools, unit.seed)
        load = unit.load
        if load.concurrency is not None:
            return replace(self._jobs, concurrency=load.concurrency), self._alone_s
        times_s = arrival_times_s(
            load.arrivals,
            seed=unit.seed,
            jps=unit.jps,
            num_jobs=len(self._jobs.jobs),
            duration_s=None,
        )
        jobs = (
            replace(job, arrival_s=time_s)
            for job, time_s in zip(self._jobs.jobs, times_s, strict=True)
        )
        return replace(self._jobs, jobs=tuple(jobs), concurrency=None), self._alone_s
