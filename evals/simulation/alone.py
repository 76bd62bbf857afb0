"""How long a job takes with the machine to itself: the same costs, no queue, nothing evicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..workload.plans import JobPlan
from .cost import Batch
from .machine import Machine


@dataclass(frozen=True, slots=True)
class TurnAlone:
    """One turn with the machine to itself; `prompt_tokens` is the whole prompt."""

    prompt_tokens: int
    prefill_s: float
    decode_s: float


def alone_s(job: JobPlan, machine: Machine) -> float:
    """Seconds from arrival to end of a job on an empty server that keeps its whole context."""
    total_s = 0.0
    for turn, alone in zip(job.turns, turns_alone(job, machine), strict=True):
        total_s += machine.request_s + turn.tool_s
        total_s += alone.prefill_s
        total_s += alone.decode_s
    return total_s - job.turns[-1].tool_s


def turns_alone(job: JobPlan, machine: Machine) -> Iterator[TurnAlone]:
    """Each turn of a job on an empty server that keeps its whole context."""
    computed_tokens = 0
    for number, turn in enumerate(job.turns):
        prompt_tokens = job.prompt_tokens(number)
        hit_tokens = min(computed_tokens, prompt_tokens - 1)
        hit_tokens -= hit_tokens % machine.block_tokens
        yield TurnAlone(
            prompt_tokens,
            _prefill_s(hit_tokens, prompt_tokens, machine),
            _decode_s(prompt_tokens, turn.output_tokens - 1, machine),
        )
        computed_tokens = prompt_tokens + turn.output_tokens - 1


def _prefill_s(hit_tokens: int, prompt_tokens: int, machine: Machine) -> float:
    total_s = 0.0
    while hit_tokens < prompt_tokens:
        chunk_tokens = min(machine.max_num_batched_tokens, prompt_tokens - hit_tokens)
        batch = Batch()
        if chunk_tokens == 1:
            batch.add_decode(hit_tokens)
        else:
            batch.add_prefill(chunk_tokens, hit_tokens)
        total_s += machine.cost.step_s(batch)
        hit_tokens += chunk_tokens
    return total_s


def _decode_s(past_tokens: int, num_steps: int, machine: Machine) -> float:
    total_s = 0.0
    for step in range(num_steps):
        batch = Batch()
        batch.add_decode(past_tokens + step)
        total_s += machine.cost.step_s(batch)
    return total_s
