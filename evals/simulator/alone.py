"""How many jobs a server carries: from each alone on an empty one, and by the search for the knee.

`agentkv simulate --knee` has each policy played at growing loads until turns wait longer than a
bound, then between the last two. First turns count, too: a policy that holds newcomers back makes
them wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from ..outcomes import RunOutcome, quantile
from ..tables import cell, text_table
from ..workload.plans import JobPlan
from .cost import StepBatch
from .machine import Machine

DEFAULT_TTFT_S = 2.0
SHARE_IN_TIME = 0.9
"""Share of turns whose first token must come in time. Chosen, as is DEFAULT_TTFT_S."""
MAX_AT_ONCE = 4096
_PRECISION = 0.1
"""The search ends when the load that is carried and the one that is not differ by this share."""


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
        yield TurnAlone(
            prompt_tokens,
            _prefill_s(hit_tokens, prompt_tokens, machine),
            _decode_s(prompt_tokens, turn.output_tokens - 1, machine),
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


def _decode_s(past_tokens: int, num_steps: int, machine: Machine) -> float:
    steps = range(past_tokens, past_tokens + num_steps)
    return sum(machine.cost.step_s(StepBatch.of_decodes(1, tokens)) for tokens in steps)


def jobs_that_fit(jobs: Sequence[JobPlan], machine: Machine) -> float:
    """Jobs at once, on their way at any point, whose contexts just fill the pool."""
    return machine.pool_tokens / _mean_tokens([_held(job, machine) for job in jobs])


def _mean_tokens(held: Sequence[tuple[float, float]]) -> float:
    return fmean(token_s for token_s, _ in held) / fmean(duration_s for _, duration_s in held)


def enough_jps(jobs: Sequence[JobPlan], machine: Machine) -> float:
    """Jobs per second for which the server is just enough: the lower of what its pool and its GPU
    carry. Above it memory runs short, or turns queue for the GPU.

    Memory by Little's law: contexts held = rate x token-seconds of a job. Compute: each token of a
    job once, prompts in full batches, outputs in batches of as many contexts as the pool holds.
    """
    held = [_held(job, machine) for job in jobs]
    token_s, mean_tokens = fmean(token_s for token_s, _ in held), _mean_tokens(held)
    num_resident = int(machine.pool_tokens / mean_tokens)
    num_decodes = max(1, min(machine.max_num_seqs, num_resident))
    prefills, decodes = StepBatch(), StepBatch()
    prefills.add_prefill(machine.max_num_batched_tokens, int(mean_tokens))
    for _ in range(num_decodes):
        decodes.add_decode(int(mean_tokens))
    prefill_tokens = fmean(sum(turn.added_tokens for turn in job.turns) for job in jobs)
    output_tokens = fmean(sum(turn.output_tokens for turn in job.turns) for job in jobs)
    work_s = (
        prefill_tokens * machine.cost.step_s(prefills) / machine.max_num_batched_tokens
        + output_tokens * machine.cost.step_s(decodes) / num_decodes
    )
    return min(machine.pool_tokens / token_s, 1.0 / work_s)


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
    return token_s + machine.state_tokens * duration_s, duration_s


def prefill_coefficients(machine: Machine) -> tuple[float, float, float]:
    """Seconds of a prefill alone on the machine: constant, per token, per token squared."""
    lengths = [512, 2048, 8192]
    quadratic_s, linear_s, constant_s = np.polyfit(
        lengths, [_prefill_s(0, num_tokens, machine) for num_tokens in lengths], 2
    )
    return float(constant_s), float(linear_s), float(quadratic_s)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One policy at one load; `in_time` is the share of turns within the bound."""

    at_once: int
    in_time: float
    ttft_first_p90_s: float | None
    ttft_continuing_p90_s: float | None
    mean_s: float | None
    jobs_per_hour_gpu: float
    tokens_per_s: float

    @property
    def is_carried(self) -> bool:
        return self.in_time >= SHARE_IN_TIME

    @property
    def gpu_hours_per_1000_jobs(self) -> float:
        """What a thousand jobs cost."""
        return 1000.0 / self.jobs_per_hour_gpu if self.jobs_per_hour_gpu else 0.0


def measure(run: RunOutcome, at_once: int, ttft_s: float, num_gpus: int) -> LoadPoint:
    """The field's units of one run in a closed loop."""
    turns = [turn for job in run.jobs for turn in job.turns if turn.error is None]
    first = [turn.to_first_token_s for turn in turns if turn.turn == 0]
    later = [turn.to_first_token_s for turn in turns if turn.turn > 0]
    whole = [job for job in run.jobs if job.is_whole]
    done = [job for job in whole if job.status == "done"]
    hours = run.duration_s / 3600.0 * num_gpus
    output_tokens = sum(turn.output_tokens for job in run.jobs for turn in job.turns)
    durations_s = [job.duration_s for job in done]
    return LoadPoint(
        at_once,
        sum(wait_s <= ttft_s for wait_s in first + later) / len(turns) if turns else 0.0,
        quantile(first, SHARE_IN_TIME),
        quantile(later, SHARE_IN_TIME),
        sum(durations_s) / len(durations_s) if durations_s else None,
        len(done) / hours if hours else 0.0,
        output_tokens / run.duration_s if run.duration_s else 0.0,
    )


def find_knee(start: int, play: Callable[[int], LoadPoint]) -> list[LoadPoint]:
    """Points of one policy from the lowest load up; the last that is carried is the knee.

    play: simulates a number of jobs at once. Doubles the load from `start` while it is carried, or
    halves it while it is not, then bisects; about eight runs.
    """
    points = {start: play(start)}
    at_once = start
    grows = points[start].is_carried
    end = MAX_AT_ONCE if grows else 1
    while points[at_once].is_carried == grows and at_once != end:
        at_once = min(end, at_once * 2) if grows else at_once // 2
        points[at_once] = play(at_once)
    carried = max((n for n, point in points.items() if point.is_carried), default=0)
    beyond = min((n for n in points if n > carried), default=carried)
    while beyond - carried > max(1.0, _PRECISION * carried):
        middle = (carried + beyond) // 2
        points[middle] = play(middle)
        if points[middle].is_carried:
            carried = middle
        else:
            beyond = middle
    return [points[n] for n in sorted(points)]


def knee_of(points: Sequence[LoadPoint]) -> LoadPoint | None:
    """The highest load that is carried, below the lowest one that is not; None without one."""
    carried = None
    for point in points:
        if not point.is_carried:
            break
        carried = point
    return carried


def describe_knees(points: Mapping[str, Sequence[LoadPoint]], ttft_s: float) -> dict[str, Any]:
    """The document: each policy's knee, and its curve of jobs an hour against job time."""
    return {
        "ttft_s": ttft_s,
        "policies": {
            name: {
                "knee": None if (knee := knee_of(found)) is None else _as_dict(knee),
                "curve": [_as_dict(point) for point in found],
            }
            for name, found in points.items()
        },
    }


def _as_dict(point: LoadPoint) -> dict[str, Any]:
    return {**asdict(point), "gpu_hours_per_1000_jobs": point.gpu_hours_per_1000_jobs}


def report_knees(points: Mapping[str, Sequence[LoadPoint]], gpu: str, ttft_s: float) -> str:
    """The curves as a table, and the answer in a sentence."""
    header = ("policy", "at once", "in time", "first TTFT p90 s", "next TTFT p90 s", "mean job s")
    rows = [
        (
            name,
            point.at_once,
            cell(point.in_time, ".0%"),
            cell(point.ttft_first_p90_s),
            cell(point.ttft_continuing_p90_s),
            cell(point.mean_s, ".1f"),
            cell(point.jobs_per_hour_gpu, ".0f"),
            cell(point.tokens_per_s, ".0f"),
        )
        for name, found in points.items()
        for point in found
    ]
    return (
        text_table((*header, "jobs/h/GPU", "tokens/s"), rows)
        + "\n"
        + _sentence(points, gpu, ttft_s)
    )


def _sentence(points: Mapping[str, Sequence[LoadPoint]], gpu: str, ttft_s: float) -> str:
    said = []
    for name, found in points.items():
        knee = knee_of(found)
        if knee is None:
            said.append(f"not one in time under {name}")
            continue
        least = "at least " if knee is found[-1] else ""
        said.append(
            f"{least}{knee.at_once} under {name} ({knee.jobs_per_hour_gpu:.0f} jobs an hour, "
            f"{knee.gpu_hours_per_1000_jobs:.1f} GPU hours per 1,000 jobs)"
        )
    return (
        f"Such jobs at once on {gpu} while {SHARE_IN_TIME:.0%} of turns have their first "
        f"token within {ttft_s:g} s: {'; '.join(said)}."
    )
