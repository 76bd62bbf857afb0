"""What rate of jobs a server can just take: the 1x of a study, from jobs and machine alone.

No policy and no run has a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..simulation.alone import turns_alone
from ..simulation.cost import Batch
from ..simulation.machine import Machine
from ..workload.plans import JobPlan


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
