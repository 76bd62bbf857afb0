"""Makes workloads: which jobs, what they do, when they arrive; one seed, the same jobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path

from agentkv.errors import InputError, not_among

from ..traces.logs import read_turns
from ..traces.turns import job_plans, jobs_among
from .kinds import KINDS, WorkloadKind, redraw_tools, tool_source
from .plans import JobPlan, Prefix, TurnPlan, Workload, arrival_times_s

WORKLOADS = (*KINDS, "trace")
_TOO_SMALL = "max_context_tokens: allowed is at least the first turn of a job, prompt and output"

Fit = Callable[[JobPlan], JobPlan | None]


def make_workload(
    name: str,
    *,
    seed: int,
    num_jobs: int,
    jps: float | None = None,
    concurrency: int | None = None,
    arrivals: str | None = None,
    max_turns: int | None = None,
    tools: str | None = None,
    trace: Path | None = None,
    max_context_tokens: int | None = None,
    token_scale: float = 1.0,
) -> Workload:
    """The workload of that name, one of WORKLOADS.

    jps, concurrency, arrivals: jobs per second, at random ("poisson") or in bursts ("burst"); or
        jobs running at once, each followed by the next (a closed loop), or all by the next step.
    max_turns, max_context_tokens: a job ends with the last turn that keeps within both.
    tools: "recorded", "longtail", or a trace file to draw commands and times from.
        The workload itself says what None means for arrivals and tools.
    trace: the file of the workload "trace", a trace or an event log. Its jobs come in a seeded
        order, and again if used up.
    token_scale: multiplies every token count, for machines slower than the jobs were meant for.

    A job depends on seed and number alone: neither the rate nor the number of jobs changes it.
    Raises InputError for what is unknown, contradicts itself or cannot be read.
    """
    kind = KINDS.get(name)
    if name not in WORKLOADS:
        raise InputError(f"--workload: {not_among(name, WORKLOADS)}")
    if name == "trace" and trace is None:
        raise InputError("trace: the workload 'trace' needs a file of jobs")
    if name != "trace" and trace is not None:
        raise InputError(f"trace: only the workload 'trace' takes one, got workload {name!r}")
    if jps is not None and concurrency is not None:
        raise InputError("jps and concurrency: give one of them")
    if concurrency is not None and arrivals is not None:
        raise InputError(f"arrivals: got {arrivals!r} and jobs at once: give a rate, --jps R")
    draw_tool = tool_source(tools or ("recorded" if kind is None else kind.tools))
    fit = partial(_cut_to_fit, max_turns, max_context_tokens, token_scale)
    if concurrency is not None:
        times_s = [0.0] * num_jobs
    elif kind is not None and kind.steps is not None:
        raise InputError(f"concurrency: {name} starts in steps: give the number of jobs at once")
    else:
        how = arrivals or ("poisson" if kind is None else kind.arrivals)
        times_s = arrival_times_s(how, seed=seed, jps=jps, num_jobs=num_jobs)
    endless = _made_jobs(kind, seed, fit) if kind else _traced_jobs(seed, trace, fit)
    jobs = [replace(job, arrival_s=at_s) for at_s, job in zip(times_s, endless, strict=False)]
    if draw_tool is not None:
        jobs = [
            redraw_tools(job, draw_tool, random.Random(f"{seed} tools {number}"))
            for number, job in enumerate(jobs)
        ]
    return Workload(name, seed, tuple(jobs), concurrency, None if kind is None else kind.steps)


def _made_jobs(kind: WorkloadKind, seed: int, fit: Fit) -> Iterator[JobPlan]:
    """Jobs of a kind without end."""
    for number in count():
        job = fit(kind.make(seed, number))
        if job is None:
            raise InputError(_TOO_SMALL)
        yield job


def _traced_jobs(seed: int, trace: Path | None, fit: Fit) -> Iterator[JobPlan]:
    """The file's jobs in a seeded order, those that do not fit left out; then the same again."""
    assert trace is not None, "make_workload asks for it"
    jobs = [job for job in map(fit, _jobs_in(trace)) if job is not None]
    if not jobs:
        raise InputError(f"{trace}: {_TOO_SMALL}")
    random.Random(f"{seed} trace").shuffle(jobs)
    for round_number in count(1):
        for job in jobs:
            yield job if round_number == 1 else _again(job, f"#{round_number}")


@lru_cache(maxsize=1)
def _jobs_in(trace: Path) -> tuple[JobPlan, ...]:
    """The jobs of a file or folder by arrival; `simulate` asks twice."""
    return tuple(job_plans(jobs_among(read_turns(trace))))


def _again(job: JobPlan, suffix: str) -> JobPlan:
    """The job, and its children, under other names."""
    turns = tuple(
        replace(turn, children=tuple(_again(child, suffix) for child in turn.children))
        for turn in job.turns
    )
    return replace(job, job_id=job.job_id + suffix, turns=turns)


def _cut_to_fit(
    max_turns: int | None, max_context_tokens: int | None, token_scale: float, job: JobPlan
) -> JobPlan | None:
    """The job with the turns that keep within the limits, and so its children.

    The last turn has no tool. None if not even the first one fits.
    """
    fit = partial(_cut_to_fit, max_turns, max_context_tokens, token_scale)
    kept: list[TurnPlan] = []
    context_tokens = 0
    for turn in job.turns[:max_turns]:
        scaled = replace(
            turn,
            added_tokens=max(1, round(turn.added_tokens * token_scale)),
            output_tokens=max(1, round(turn.output_tokens * token_scale)),
            kept_tokens=None if turn.kept_tokens is None else round(turn.kept_tokens * token_scale),
        )
        context_tokens = scaled.prompt_tokens(context_tokens) + scaled.output_tokens
        if max_context_tokens is not None and context_tokens > max_context_tokens:
            break
        children = tuple(child for child in map(fit, turn.children) if child is not None)
        kept.append(replace(scaled, children=children))
    if not kept:
        return None
    prefixes = tuple(
        Prefix(prefix.name, round(prefix.num_tokens * token_scale)) for prefix in job.prefixes
    )
    return replace(job, turns=(*kept[:-1], kept[-1].as_last()), prefixes=prefixes)
