"""What a job takes alone on an empty server, and how many such jobs a server carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from ..workload.plans import JobPlan
from .cost import StepBatch
from .machine import Machine


@dataclass(frozen=True, slots=True)
class TurnAlone:
    """Times of one turn on an empty server; `prompt_tokens` is the whole prompt."""

    prompt_tokens: int
    prefill_s: float
    decode_s: float


def alone_s(job: JobPlan, machine: Machine) -> float:
    """Seconds from arrival to end of a job on an empty server that keeps its whole context.

    Children of a turn do not slow each other here, nor find a prefix that another one computed.
    """
    total_s = 0.0
    for turn, alone in zip(job.turns, turns_alone(job, machine), strict=True):
        children_s = (child.arrival_s + alone_s(child, machine) for child in turn.children)
        total_s += machine.request_s + max([turn.tool_s, *children_s]) + turn.pause_s
        total_s += alone.prefill_s
        total_s += alone.decode_s
    return total_s - job.turns[-1].tool_s


def turns_alone(job: JobPlan, machine: Machine) -> Iterator[TurnAlone]:
    """Each turn of a job on an empty server that keeps its whole context."""
    computed_tokens = 0
    for number, turn in enumerate(job.turns):
        prompt_tokens = job.prompt_tokens(number)
        kept_tokens = computed_tokens if turn.kept_tokens is None else turn.kept_tokens
        hit_tokens = min(kept_tokens, computed_tokens, prompt_tokens - 1)
        hit_tokens -= hit_tokens % machine.block_tokens
        contexts = range(prompt_tokens, prompt_tokens + turn.output_tokens - 1)
        yield TurnAlone(
            prompt_tokens,
            _prefill_s(hit_tokens, prompt_tokens, machine),
            sum(machine.cost.step_s(StepBatch.of_decodes(1, tokens)) for tokens in contexts),
        )
        computed_tokens = machine.reusable_tokens(
            prompt_tokens, prompt_tokens + turn.output_tokens - 1
        )


def _prefill_s(hit_tokens: int, prompt_tokens: int, machine: Machine) -> float:
    total_s = 0.0
    while hit_tokens < prompt_tokens:
        chunk_tokens = _chunk_tokens(hit_tokens, prompt_tokens, machine)
        batch = StepBatch.of_prefill(chunk_tokens, hit_tokens)
        if chunk_tokens == 1:
            batch = StepBatch.of_decodes(1, hit_tokens)
        total_s += machine.cost.step_s(batch)
        hit_tokens += chunk_tokens
    return total_s


def _chunk_tokens(past_tokens: int, prompt_tokens: int, machine: Machine) -> int:
    """Tokens of a prompt that the next step computes: with recurrent layers no chunk runs past the
    last whole block, whose state is kept, and those before it end with a block. vLLM stops once
    more where the turn before ended, if its reply filled a block."""
    num_tokens = min(machine.max_num_batched_tokens, prompt_tokens - past_tokens)
    size, end_tokens = machine.block_tokens, past_tokens + num_tokens
    last_state = machine.reusable_tokens(prompt_tokens, 0)
    if past_tokens < last_state < end_tokens:
        return last_state - past_tokens
    if machine.num_state_groups and end_tokens < prompt_tokens:
        return end_tokens // size * size - past_tokens or num_tokens
    return num_tokens


def jobs_that_fit(jobs: Sequence[JobPlan], machine: Machine) -> float:
    """Jobs at once, on their way at any point, whose contexts just fill the pool."""
    held = [held_alone(job, machine) for job in jobs]
    return machine.pool_tokens / mean_tokens(held)


def mean_tokens(held: Sequence[tuple[float, float]]) -> float:
    """Tokens that a job holds at a point on its way, by what `held_alone` says of several."""
    return fmean(token_s for token_s, _ in held) / fmean(duration_s for _, duration_s in held)


def held_alone(job: JobPlan, machine: Machine) -> tuple[float, float]:
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
    return token_s + machine.state_tokens * duration_s, duration_s
