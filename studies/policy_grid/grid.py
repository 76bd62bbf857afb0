"""The grid of a study: loads as multiples of 1x, jobs, machines, and the units to play.

A unit is one policy in one regime (tools x pool x load) with one seed. Knows nothing of files or of
how a unit is played. method.md explains 1x.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from agentkv.errors import InputError
from agentkv.evals.simulator.cost import Batch
from agentkv.evals.simulator.machine import Machine, alone_s, turns_alone
from agentkv.evals.workload.jobs import TOOLS
from agentkv.evals.workload.plans import JobPlan, Workload, arrival_times_s
from agentkv.evals.workload.traces import json_lines, read_traced_jobs
from agentkv.evals.workload.workloads import make_workload

MULTIPLES = {"light": 0.1, "1x": 1.0, "2x": 2.0, "overload": 4.0, "burst": 1.0}
"""Loads by name. At 0.1 stock neither preempted nor recomputed anything, at 0.2 it did on a pool of
3,000 blocks (method.md)."""
DEFAULT_LOADS = ("light", "1x", "2x", "overload", "closed-32", "closed-64", "burst")
PARTS = ("tune", "held-out", "all")
HELD_OUT_PERCENT = 30
FOOTPRINT_JOBS, FOOTPRINT_SEED = 200, 0
"""The jobs from which 1x is computed, for any seeds and number of jobs of a study."""


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that arrive at `multiple` times 1x, or `concurrency` at once, each followed by the next.

    Open-loop arrivals are random, or in bursts of eight if the name starts with "burst".
    """

    name: str
    multiple: float | None = None
    concurrency: int | None = None

    @property
    def arrivals(self) -> Literal["poisson", "burst"]:
        return "burst" if self.name.startswith("burst") else "poisson"


def parse_load(text: str) -> Load:
    """NAME=MULTIPLE, closed-N, or a name of MULTIPLES; InputError for anything else."""
    name, has_multiple, given = text.partition("=")
    closed = re.fullmatch(r"closed-([1-9][0-9]*)", text)
    if closed is not None:
        return Load(name, concurrency=int(closed[1]))
    try:
        multiple = float(given) if has_multiple else MULTIPLES[name]
    except (KeyError, ValueError):
        multiple = 0.0
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("closed") or not 0.0 < multiple < 1e6:
        raise InputError(
            f"--loads: got {text!r}, allowed are {', '.join(MULTIPLES)}, NAME=MULTIPLE such as "
            "3x=3 or burst-2x=2 (a number above 0), and closed-N"
        )
    return Load(name, multiple)


@dataclass(frozen=True, slots=True)
class Capacity:
    """Jobs per second that fill the pool and the GPU, and the mean contexts that the pool holds."""

    memory_jps: float
    compute_jps: float
    num_resident: float

    @property
    def one_x_jps(self) -> float:
        """1x: the lower of the two rates."""
        return min(self.memory_jps, self.compute_jps)

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "one_x_jps": self.one_x_jps}


def capacity(jobs: Sequence[JobPlan], machine: Machine) -> Capacity:
    """The rates at which the machine's pool, and its GPU, are just enough for such jobs.

    Memory by Little's law: contexts held = rate x token-seconds of a job. Compute: each token of a
    job once, prompts in full batches, outputs in batches of as many contexts as the pool holds.
    """
    held = [_held(job, machine) for job in jobs]
    token_s = fmean(token_s for token_s, _ in held)
    mean_tokens = token_s / fmean(duration_s for _, duration_s in held)
    num_resident = machine.pool_tokens / mean_tokens
    num_decodes = max(1, min(machine.max_num_seqs, int(num_resident)))
    prefills, decodes = Batch(), Batch()
    prefills.add_prefill(machine.max_num_batched_tokens, int(mean_tokens))
    for _ in range(num_decodes):
        decodes.add_decode(int(mean_tokens))
    prefill_tokens = fmean(sum(turn.added_tokens for turn in job.turns) for job in jobs)
    output_tokens = fmean(sum(turn.output_tokens for turn in job.turns) for job in jobs)
    work_s = (
        prefill_tokens * machine.cost.step_s(prefills) / machine.max_num_batched_tokens
        + output_tokens * machine.cost.step_s(decodes) / num_decodes
    )
    return Capacity(machine.pool_tokens / token_s, 1.0 / work_s, num_resident)


def _held(job: JobPlan, machine: Machine) -> tuple[float, float]:
    """Token-seconds and seconds of one job alone; its context grows evenly while it decodes."""
    token_s = duration_s = 0.0
    context_tokens = 0
    for turn, alone in zip(job.turns, turns_alone(job, machine), strict=True):
        token_s += machine.request_s * context_tokens
        token_s += alone.prefill_s * alone.prompt_tokens
        token_s += alone.decode_s * (alone.prompt_tokens + turn.output_tokens / 2.0)
        context_tokens = alone.prompt_tokens + turn.output_tokens
        token_s += turn.tool_s * context_tokens
        duration_s += machine.request_s + alone.prefill_s + alone.decode_s + turn.tool_s
    return token_s, duration_s


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation. `jps` is the rate of the load, None in a closed loop."""

    tools: str
    pool_blocks: int
    load: Load
    jps: float | None
    seed: int
    policy: str

    def facts(self) -> dict[str, Any]:
        """The unit as its row carries it; tools without the folder of a file."""
        return {
            "tools": Path(self.tools).name,
            "pool_blocks": self.pool_blocks,
            "load": self.load.name,
            "multiple": self.load.multiple,
            "jps": self.jps,
            "concurrency": self.load.concurrency,
            "arrivals": None if self.load.concurrency else self.load.arrivals,
            "seed": self.seed,
            "policy": self.policy,
        }

    def key(self, config: Mapping[str, Any]) -> str:
        """Hash of all that decides the unit's result, except the code."""
        text = json.dumps({"config": config, **self.facts()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        place = f"{Path(self.tools).name}, {self.pool_blocks} blocks, {self.load.name}"
        return f"{place}, seed {self.seed}, {self.policy}"


@dataclass(frozen=True, slots=True)
class JobSource:
    """Where jobs come from; `trace` holds the jobs of the study's part alone."""

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


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The grid and everything a worker needs; `config` is common to all rows of a study."""

    loads: tuple[Load, ...]
    tools: tuple[str, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    source: JobSource
    machines: Mapping[int, Machine]
    capacities: Mapping[tuple[str, int], Capacity]
    dram_gib: float
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]

    def units(self) -> list[Unit]:
        """The whole grid for the first seed, then for the next; policies of a regime together."""
        return [
            Unit(tools, pool, load, self._jps(tools, pool, load), seed, policy)
            for seed in self.seeds
            for tools in self.tools
            for pool in self.machines
            for load in self.loads
            for policy in self.policies
        ]

    def _jps(self, tools: str, pool_blocks: int, load: Load) -> float | None:
        if load.multiple is None:
            return None
        return load.multiple * self.capacities[tools, pool_blocks].one_x_jps

    def workload(self, unit: Unit) -> tuple[Workload, dict[str, float]]:
        """A unit's jobs as they arrive, and the seconds that each takes alone."""
        made, alone = _jobs(self.source, unit.tools, unit.seed, self.machines[unit.pool_blocks])
        if unit.load.concurrency is not None:
            return replace(made, concurrency=unit.load.concurrency), alone
        times_s = arrival_times_s(
            unit.load.arrivals,
            seed=unit.seed,
            jps=unit.jps,
            num_jobs=len(made.jobs),
            duration_s=None,
        )
        arrivals = zip(made.jobs, times_s, strict=True)
        jobs = tuple(replace(job, arrival_s=time_s) for job, time_s in arrivals)
        return replace(made, jobs=jobs, concurrency=None), alone


@lru_cache(maxsize=8)
def _jobs(
    source: JobSource, tools: str, seed: int, machine: Machine
) -> tuple[Workload, dict[str, float]]:
    made = source.make(tools, seed)
    return made, {job.job_id: alone_s(job, machine) for job in made.jobs}


def is_held_out(job_id: str) -> bool:
    """True for the jobs kept for the end: the same in every file and every run."""
    return int(hashlib.sha256(job_id.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def trace_of_part(trace: Path, part: str, folder: Path) -> Path:
    """A trace with the part's jobs alone, in `folder` unless it is all of them.

    Raises WorkloadError for an invalid trace, InputError for one without a job in this part.
    """
    read_traced_jobs(trace)
    if part == "all":
        return trace
    lines = [
        json.dumps(fields)
        for _, fields in json_lines(trace)
        if is_held_out(fields["job_id"]) == (part == "held-out")
    ]
    if not lines:
        raise InputError(f"{trace}: none of its jobs is in the part {part!r}")
    path = folder / f"{part}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
