"""Jobs on an ideal engine, which wastes neither a block nor a step: a yardstick, and a bound.

method.md has the argument. An ideal is a "policy" of a study that plays nothing and has
durations of jobs, and tokens per second, alone.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any, NamedTuple

from agentkv.evals.simulator.cost import Roofline
from agentkv.evals.simulator.machine import Machine
from agentkv.evals.simulator.simulate import KEYS
from agentkv.evals.summary import describe_durations
from agentkv.evals.workload.plans import JobPlan, Workload

from .policies import IN_ORDER

_PRICES = 20
"""Prices of holding that are tried; each bounds the work, and the highest counts."""


def ideal_entry(
    name: str, workload: Workload, machine: Machine, alone_s: Mapping[str, float]
) -> dict[str, Any]:
    """What a row has of an ideal: durations in seconds, tokens per second, and None for all else.

    No figure is better than that of the jobs alone.
    """
    jobs = workload.jobs
    works_s = least_works_s(jobs, machine)
    if workload.concurrency is not None:
        arrivals_s = [0.0] * len(jobs)
        ideal = closed_ideal(name, works_s, workload.concurrency)
    else:
        arrivals_s = [job.arrival_s - jobs[0].arrival_s for job in jobs]
        ideal = open_ideal(name, arrivals_s, works_s)
    jobs_alone_s = [alone_s[job.job_id] for job in jobs]
    durations_s = list(map(max, sorted(ideal.durations_s), sorted(jobs_alone_s)))
    end_s = max(ideal.end_s, *map(operator.add, arrivals_s, jobs_alone_s))
    output_tokens = sum(turn.output_tokens for job in jobs for turn in job.turns)
    return {
        **dict.fromkeys(KEYS),
        **describe_durations(durations_s),
        "mean_s": max(ideal.mean_s, fmean(jobs_alone_s)),
        "tokens_per_s": output_tokens / end_s,
        "jobs": 0,
        "completed": 0,
        "counters": {},
    }


# Work: the engine's time that a job takes under any policy


def least_works_s(jobs: Sequence[JobPlan], machine: Machine) -> list[float]:
    """Seconds of the engine that each job takes at the least."""
    cost = machine.cost
    assert isinstance(cost, Roofline)
    step_s = cost.weight_bytes / cost.bytes_per_s + cost.fixed_s
    full_pool_s = machine.pool_tokens * cost.kv_token_bytes / cost.bytes_per_s
    highest = step_s / (step_s + full_pool_s)
    tried = [
        [_work_s(job, machine, cost, highest * number / _PRICES) for job in jobs]
        for number in range(_PRICES + 1)
    ]
    return max(tried, key=sum)


def _work_s(job: JobPlan, machine: Machine, cost: Roofline, price: float) -> float:
    """A job's work if a second in which it holds the whole pool costs `price` of the engine's."""
    weights_s = cost.weight_bytes / cost.bytes_per_s
    # A prompt token's products, less its part in reading the weights once more for each full budget
    budget = max(1, machine.max_num_batched_tokens - machine.max_num_seqs)
    token_s = max(0.0, cost.token_flop / cost.flop_per_s - weights_s / budget)
    # The tail of a context that costs nothing to compute again
    free_tokens = weights_s / token_s if token_s else math.inf

    def prefill_s(past_tokens: int, prompt_tokens: int) -> float:
        """What a prefill adds to its steps beyond reading the weights, which each does anyway.

        A prompt is cut only where a step's budget is full.
        """
        new_tokens = prompt_tokens - past_tokens
        pairs = new_tokens * past_tokens + new_tokens * (new_tokens + 1) // 2
        products_s = max(0.0, token_s * new_tokens - weights_s)
        attention_s = cost.pair_flop * pairs / cost.flop_per_s
        return (1.0 - price) * (products_s + attention_s + cost.sequence_s)

    total_s, computed_tokens = 0.0, 0
    for number, turn in enumerate(job.turns):
        prompt_tokens, num_steps = job.prompt_tokens(number), turn.output_tokens - 1
        past_tokens = min(computed_tokens, prompt_tokens - 1)
        past_tokens -= past_tokens % machine.block_tokens
        total_s += prefill_s(past_tokens, prompt_tokens)
        if number:
            idle_s = job.turns[number - 1].tool_s + machine.request_s
            held_tokens = max(0.0, past_tokens - free_tokens)
            again_s = prefill_s(0, prompt_tokens) - prefill_s(past_tokens, prompt_tokens)
            total_s += min(price * idle_s * held_tokens / machine.pool_tokens, again_s)
        decoded_tokens = num_steps * prompt_tokens + num_steps * (num_steps + 1) // 2
        total_s += decoded_tokens * cost.kv_token_bytes / cost.bytes_per_s
        total_s += (1.0 - price) * num_steps * cost.sequence_s
        # A step's fixed cost, by the share of the pool that this context takes in it
        share = (prompt_tokens + decoded_tokens) / machine.pool_tokens
        total_s += (weights_s + cost.fixed_s) * share
        computed_tokens = prompt_tokens + num_steps
    return total_s


# Orders: how soon a machine that works at one second per second is done with all works


class Ideal(NamedTuple):
    """Seconds from arrival to end, and from the first arrival to the last end. Of `ideal:any-order`
    each is a bound for itself: the least mean, and the least that the longest duration can be, the
    second longest, and so on."""

    mean_s: float
    durations_s: Sequence[float]
    end_s: float


def open_ideal(name: str, arrivals_s: Sequence[float], works_s: Sequence[float]) -> Ideal:
    """Jobs that come by themselves; `arrivals_s` ascend from 0."""
    in_order_s = _in_order_s(arrivals_s, works_s)
    end_s = arrivals_s[-1] + in_order_s[-1]
    if name == IN_ORDER:
        return Ideal(fmean(in_order_s), in_order_s, end_s)
    # In order of arrival the longest is least; without m jobs, by no more than their works less.
    largest_s = accumulate(sorted(works_s, reverse=True)[:-1], initial=0.0)
    most_s = max(in_order_s)
    longest_s = [max(0.0, most_s - left_out_s) for left_out_s in largest_s]
    return Ideal(_shortest_first_s(arrivals_s, works_s), longest_s, end_s)


def _in_order_s(arrivals_s: Sequence[float], works_s: Sequence[float]) -> list[float]:
    now_s, durations_s = 0.0, []
    for arrival_s, work_s in zip(arrivals_s, works_s, strict=True):
        now_s = max(now_s, arrival_s) + work_s
        durations_s.append(now_s - arrival_s)
    return durations_s


def _shortest_first_s(arrivals_s: Sequence[float], works_s: Sequence[float]) -> float:
    """Shortest remaining work first, which has the least mean (Schrage, 1968)."""
    left: list[float] = []
    now_s, total_s = 0.0, 0.0
    next_arrivals_s = [*arrivals_s[1:], math.inf]
    for arrival_s, next_s, work_s in zip(arrivals_s, next_arrivals_s, works_s, strict=True):
        now_s = max(now_s, arrival_s)
        heapq.heappush(left, work_s)
        while left and now_s < next_s:
            # The jobs that are there wait together until the first is done, or the next comes.
            spent_s = min(left[0], next_s - now_s)
            total_s += spent_s * len(left)
            now_s += spent_s
            rest_s = heapq.heappop(left) - spent_s
            if rest_s > 0.0:
                heapq.heappush(left, rest_s)
    return total_s / len(works_s)


def closed_ideal(name: str, works_s: Sequence[float], concurrency: int) -> Ideal:
    """The same where a job arrives as another ends: all durations together are the times of the
    last `concurrency` ends, and the k-th end cannot come before k works are done."""
    num_jobs = len(works_s)
    first = max(0, num_jobs - concurrency)
    ends_s = list(accumulate(works_s if name == IN_ORDER else sorted(works_s)))
    mean_s = sum(ends_s[first:]) / num_jobs
    if name == IN_ORDER:
        starts_s = [0.0] * (num_jobs - first) + ends_s[:first]
        return Ideal(mean_s, list(map(operator.sub, ends_s, starts_s)), ends_s[-1])
    # The m longest are no longer than the m last ends; of the others one has at least their mean.
    longest_s = [sum(ends_s[first : num_jobs - m]) / (num_jobs - m) for m in range(num_jobs)]
    return Ideal(mean_s, longest_s, ends_s[-1])
