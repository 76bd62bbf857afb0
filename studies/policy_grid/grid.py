"""What rate of jobs a server can just take: the 1x of a study, from jobs and machine alone.

No policy and no run has a part in it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the mean job takes of a server while it is alone on it, its tools included.

    `token_s` is the integral of its context over its time: tokens held, times seconds.
    """

    token_s: float
    duration_s: float
    prefill_tokens: float
    output_tokens: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """Jobs per second that fill the pool (`memory_jps`) and the GPU (`compute_jps`).

    `num_resident` is how many mean contexts the pool holds.
    """

    memory_jps: float
    compute_jps: float
    num_resident: float

    @property
    def one_x_jps(self) -> float:
        """1x: the lower of the two."""
        return min(self.memory_jps, self.compute_jps)

    def as_dict(self) -> dict[str, Any]:
        return {
            "memory_jps": self.memory_jps,
            "compute_jps": self.compute_jps,
            "one_x_jps": self.one_x_jps,
            "num_resident": self.num_resident,
        }


def mean_footprint(jobs: Sequence[JobPlan], machine: Machine) -> Footprint:
    """The mean over jobs; the pool's size has no part in it."""
    held = [_held(job, machine) for job in jobs]
    return Footprint(
        token_s=fmean(token_s for token_s, _ in held),
        duration_s=fmean(duration_s for _, duration_s in held),
        prefill_tokens=fmean(sum(turn.added_tokens for turn in job.turns) for job in jobs),
        output_tokens=fmean(sum(turn.output_tokens for turn in job.turns) for job in jobs),
    )


def _held(job: JobPlan, machine: Machine) -> tuple[float, float]:
    """Token-seconds and seconds of one job; while it decodes its context grows evenly."""
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


def capacity(footprint: Footprint, machine: Machine) -> Capacity:
    """The rates at which the machine's pool, and its GPU, are just enough.

    Memory by Little's law: contexts held = rate x token-seconds of a job. Compute: each token of a
    job once, prompts in full batches, outputs in batches of as many contexts as the pool holds.
    """
    pool_tokens = (machine.num_blocks - 1) * machine.block_tokens
    mean_tokens = footprint.token_s / footprint.duration_s
    num_resident = pool_tokens / mean_tokens
    num_decodes = max(1, min(machine.max_num_seqs, int(num_resident)))
    prefills, decodes = Batch(), Batch()
    prefills.add_prefill(machine.max_num_batched_tokens, int(mean_tokens))
    for _ in range(num_decodes):
        decodes.add_decode(int(mean_tokens))
    work_s = (
        footprint.prefill_tokens * machine.cost.step_s(prefills) / machine.max_num_batched_tokens
        + footprint.output_tokens * machine.cost.step_s(decodes) / num_decodes
    )
    return Capacity(pool_tokens / footprint.token_s, 1.0 / work_s, num_resident)


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


MULTIPLES = {"light": 0.1, "1x": 1.0, "2x": 2.0, "overload": 4.0, "burst": 1.0}
"""What the names stand for where no multiple is given. At 0.1 stock neither preempted nor
recomputed anything, at 0.2 it did on a pool of 3,000 blocks (docs/simulator.md)."""
DEFAULT_LOADS = ("light", "1x", "2x", "overload", "closed-32", "closed-64", "burst")
_CLOSED = re.compile(r"closed-([1-9][0-9]*)")
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Load:
    """Jobs that arrive at `multiple` times 1x, or `concurrency` at once, each followed by the next.

    `arrivals` is how those of an open loop come: "poisson", or "burst", eight at once.
    """

    name: str
    multiple: float | None = None
    concurrency: int | None = None

    @property
    def arrivals(self) -> Literal["poisson", "burst"]:
        return "burst" if self.name.startswith("burst") else "poisson"


def parse_load(text: str) -> Load:
    """NAME=MULTIPLE, closed-N, or a name of MULTIPLES; InputError for anything else.

    A name that starts with "burst" is one of bursts.
    """
    name, has_multiple, given = text.partition("=")
    closed = _CLOSED.fullmatch(text)
    if closed is not None:
        return Load(name, concurrency=int(closed[1]))
    try:
        multiple = float(given) if has_multiple else MULTIPLES[name]
    except (KeyError, ValueError):
        multiple = 0.0
    if _NAME.fullmatch(name) is None or name.startswith("closed") or not 0.0 < multiple < 1e6:
        raise InputError(
            f"--loads: got {text!r}, allowed are {', '.join(MULTIPLES)}, NAME=MULTIPLE such as "
            "3x=3 or burst-2x=2 (a number above 0), and closed-N"
        )
    return Load(name, multiple)


@dataclass(frozen=True, slots=True)
class Unit:
    """One simulation. `jps` is the rate that the load comes to, None in a closed loop."""

    tools: str
    pool_blocks: int
    load: Load
    jps: float | None
    seed: int
    policy: str

    def facts(self) -> dict[str, Any]:
        """The unit as its row carries it."""
        return {
            "tools": self.tools_name,
            "pool_blocks": self.pool_blocks,
            "load": self.load.name,
            "multiple": self.load.multiple,
            "jps": self.jps,
            "concurrency": self.load.concurrency,
            "arrivals": None if self.load.concurrency else self.load.arrivals,
            "seed": self.seed,
            "policy": self.policy,
        }

    @property
    def tools_name(self) -> str:
        """Without the folder of a file."""
        return Path(self.tools).name

    def __str__(self) -> str:
        place = f"{self.tools_name}, {self.pool_blocks} blocks, {self.load.name}"
        return f"{place}, seed {self.seed}, {self.policy}"


def unit_key(unit: Unit, config: Mapping[str, Any]) -> str:
    """What tells two units apart: all that decides their result, but for the code."""
    text = json.dumps({"config": config, **unit.facts()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Grid:
    """What is combined with what."""

    pools_blocks: tuple[int, ...]
    loads: tuple[Load, ...]
    tools: tuple[str, ...]
    seeds: tuple[int, ...]
    policies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """Everything a worker needs; `machines` by pool, `capacities` by tools and pool.

    `config` is what all rows of a study have in common.
    """

    grid: Grid
    source: JobSource
    machines: Mapping[int, Machine]
    capacities: Mapping[tuple[str, int], Capacity]
    dram_gib: float
    config: Mapping[str, Any]
    metadata: Mapping[str, Any]

    def units(self) -> list[Unit]:
        """A whole grid for the first seed, then for the next; policies of a regime together."""
        grid = self.grid
        return [
            Unit(tools, pool, load, self._jps(tools, pool, load), seed, policy)
            for seed in grid.seeds
            for tools in grid.tools
            for pool in grid.pools_blocks
            for load in grid.loads
            for policy in grid.policies
        ]

    def _jps(self, tools: str, pool_blocks: int, load: Load) -> float | None:
        if load.multiple is None:
            return None
        return load.multiple * self.capacities[tools, pool_blocks].one_x_jps


@dataclass(frozen=True, slots=True)
class Output:
    """Where a study goes, and how it is worked through.

    `again` names policies whose units are played anew even where their rows are there.
    """

    out: Path
    has_resume: bool
    has_force: bool
    again: tuple[str, ...]
    num_workers: int
    unit_limit_s: float


Part = Literal["tune", "held-out", "all"]
PARTS: tuple[Part, ...] = ("tune", "held-out", "all")
HELD_OUT_PERCENT = 30


def is_held_out(job_id: str) -> bool:
    """Whether a job is kept for the end; the same for a job in every file and every run."""
    return int(hashlib.sha256(job_id.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def trace_of_part(trace: Path, part: Part, folder: Path) -> Path:
    """A trace with the part's jobs alone, below `folder` unless it is all of them.

    Raises InputError for a trace that is none, or without a job in this part.
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
