"""Makes workloads: which jobs, what they do, when they arrive; one seed, the same jobs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

from agentkv.errors import InputError

from .jobs import BFCL, SWEBENCH, redraw_tools, reference_turns, synthetic_turns, tool_source
from .plans import JobPlan, TurnPlan, Workload, arrival_times_s
from .traces import TracedJob, read_traced_jobs

_MAKERS: dict[str, Callable[[random.Random], tuple[TurnPlan, ...]]] = {
    "reference": reference_turns,
    "swebench": partial(synthetic_turns, SWEBENCH),
    "bfcl": partial(synthetic_turns, BFCL),
}
WORKLOADS = (*_MAKERS, "trace")
_TOO_SMALL = "max_context_tokens: allowed is at least the first turn of a job, prompt and output"

Fit = Callable[[Sequence[TurnPlan]], tuple[TurnPlan, ...]]


def make_workload(
    name: str,
    *,
    seed: int,
    num_jobs: int | None = None,
    duration_s: float | None = None,
    jps: float | None = None,
    concurrency: int | None = None,
    arrivals: str | Sequence[float] = "poisson",
    max_turns: int | None = None,
    tools: str | Path = "recorded",
    trace: Path | None = None,
    max_context_tokens: int | None = None,
    token_scale: float = 1.0,
) -> Workload:
    """The workload of that name, one of WORKLOADS.

    num_jobs, duration_s: the number of jobs, or the time within which they arrive.
    jps, concurrency, arrivals: jobs per second, at random or in bursts; or jobs running at once,
        each followed by the next (a closed loop); or their times in seconds.
    max_turns, max_context_tokens: a job ends with the last turn that keeps within both.
    tools: "recorded", "longtail", or a trace file to draw commands and times from.
    trace: the file of the workload "trace". Its jobs come in a seeded order, and again if used up.
    token_scale: multiplies every token count, for machines slower than the jobs were meant for.

    A job depends on seed and number alone: neither the rate nor the number of jobs changes it.
    Raises InputError for anything out of range.
    """
    counts = (num_jobs, concurrency, max_turns, max_context_tokens)
    names = ("num_jobs", "concurrency", "max_turns", "max_context_tokens")
    for what, number in zip(names, counts, strict=True):
        if number is not None and number < 1:
            raise InputError(f"{what}: got {number}, allowed is a whole number from 1 on")
    for what, amount in (("duration_s", duration_s), ("token_scale", token_scale)):
        if amount is not None and not 0.0 < amount < math.inf:
            raise InputError(f"{what}: got {amount}, allowed is a number above 0")
    if concurrency is not None and jps is not None:
        raise InputError("jps and concurrency: give the one or the other, not both")
    if (num_jobs is None) == (duration_s is None) and isinstance(arrivals, str):
        raise InputError("num_jobs and duration_s: give the one or the other")
    if concurrency is None:
        times_s = arrival_times_s(
            arrivals, seed=seed, jps=jps, num_jobs=num_jobs, duration_s=duration_s
        )
    elif num_jobs is None:
        raise InputError("num_jobs: a closed loop needs it")
    else:
        times_s = [0.0] * num_jobs
    fit = partial(_cut_to_fit, max_turns, max_context_tokens, token_scale)
    draw_tool = tool_source(tools)
    jobs = []
    for number, (job_id, turns) in enumerate(islice(_jobs(name, seed, trace, fit), len(times_s))):
        if draw_tool is not None:
            turns = redraw_tools(turns, draw_tool, random.Random(f"{seed} tools {number}"))
        jobs.append(JobPlan(job_id, times_s[number], turns))
    if not jobs:
        raise InputError(
            f"no job arrives within {duration_s} s at {jps} jobs per second: allowed is a time "
            "or rate with at least one"
        )
    return Workload(name, seed, tuple(jobs), concurrency)


def _jobs(name: str, seed: int, trace: Path | None, fit: Fit) -> Iterator[TracedJob]:
    """Jobs without end."""
    if name == "trace":
        yield from _traced_jobs(seed, trace, fit)
    elif trace is not None:
        raise InputError(f"trace: only the workload 'trace' takes one, got workload {name!r}")
    elif name not in _MAKERS:
        allowed = ", ".join(WORKLOADS)
        raise InputError(f"workload: got {name!r}, allowed is one of {allowed}")
    else:
        for number in count():
            turns = fit(_MAKERS[name](random.Random(f"{seed} {name} {number}")))
            if not turns:
                raise InputError(_TOO_SMALL)
            yield f"{name}-{number:04}", turns


def _traced_jobs(seed: int, trace: Path | None, fit: Fit) -> Iterator[TracedJob]:
    """The file's jobs in a seeded order, those that do not fit left out; then the same again."""
    if trace is None:
        raise InputError("trace: the workload 'trace' needs a file of jobs")
    jobs = [(job_id, fit(turns)) for job_id, turns in read_traced_jobs(trace)]
    jobs = [(job_id, turns) for job_id, turns in jobs if turns]
    if not jobs:
        raise InputError(f"{trace}: {_TOO_SMALL}")
    random.Random(f"{seed} trace").shuffle(jobs)
    for round_number in count(1):
        for job_id, turns in jobs:
            yield job_id if round_number == 1 else f"{job_id}#{round_number}", turns


def _cut_to_fit(
    max_turns: int | None,
    max_context_tokens: int | None,
    token_scale: float,
    turns: Sequence[TurnPlan],
) -> tuple[TurnPlan, ...]:
    """The turns that keep within the limits; the last of them has no tool. Empty if none does."""
    kept: list[TurnPlan] = []
    context_tokens = 0
    for turn in turns[:max_turns]:
        added_tokens = max(1, round(turn.added_tokens * token_scale))
        output_tokens = max(1, round(turn.output_tokens * token_scale))
        context_tokens += added_tokens + output_tokens
        if max_context_tokens is not None and context_tokens > max_context_tokens:
            break
        kept.append(replace(turn, added_tokens=added_tokens, output_tokens=output_tokens))
    return (*kept[:-1], *(last.without_tool() for last in kept[-1:]))
