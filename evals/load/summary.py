"""What a run comes to: one flat table of numbers from the outcomes of its jobs.

The same function for a real server and for the simulator, so that the two can be compared.
Durations are of jobs that are done; latencies of turns that were answered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from .outcomes import JobOutcome, RunOutcome, TurnOutcome


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which `share` of the values lie, between two of them if need be."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def summarize(run: RunOutcome) -> dict[str, Any]:
    """Everything the tables and figures show of one run; None where nothing was measured."""
    done = [job for job in run.jobs if job.status == "done"]
    durations_s = [job.duration_s for job in done]
    answered = [turn for job in run.jobs for turn in job.turns if turn.error is None]
    return {
        "policy": run.policy,
        "jps": run.workload.get("jps"),
        "concurrency": run.workload.get("concurrency"),
        "jobs": len(run.jobs),
        "completed": len(done),
        "failed": sum(job.status == "failed" for job in run.jobs),
        "cut": sum(job.status == "cut" for job in run.jobs),
        "duration_s": run.duration_s,
        **describe_durations(durations_s),
        **_slowdowns(done),
        **_times_to_first_token(answered),
        **_tokens(run, answered),
        **_parts(done),
        **_by_turn(answered),
        **_reference_keys(durations_s),
    }


def describe_durations(durations_s: Sequence[float]) -> dict[str, float | None]:
    """Mean, quantiles and maximum, in seconds."""
    shares = {"p50_s": 0.5, "p90_s": 0.9, "p95_s": 0.95, "p99_s": 0.99, "max_s": 1.0}
    return {
        "mean_s": mean(durations_s),
        **{name: quantile(durations_s, share) for name, share in shares.items()},
    }


def _slowdowns(done: Sequence[JobOutcome]) -> dict[str, float | None]:
    """How many times longer than alone; None where a job's time alone is not known."""
    slowdowns = [job.duration_s / job.alone_s for job in done if job.alone_s]
    if len(slowdowns) < len(done):
        slowdowns = []
    return {
        "slowdown_p99": quantile(slowdowns, 0.99),
        "slowdown_max": quantile(slowdowns, 1.0),
    }


def _times_to_first_token(answered: Sequence[TurnOutcome]) -> dict[str, float | None]:
    first = [turn.to_first_token_s for turn in answered if turn.turn == 0]
    continuing = [turn.to_first_token_s for turn in answered if turn.turn > 0]
    return {
        "ttft_mean_s": mean([*first, *continuing]),
        "ttft_first_mean_s": mean(first),
        "ttft_first_p99_s": quantile(first, 0.99),
        "ttft_first_max_s": quantile(first, 1.0),
        "ttft_continuing_mean_s": mean(continuing),
        "ttft_continuing_p99_s": quantile(continuing, 0.99),
        "ttft_continuing_max_s": quantile(continuing, 1.0),
    }


def _tokens(run: RunOutcome, answered: Sequence[TurnOutcome]) -> dict[str, Any]:
    """Counts of tokens; the server's own count of what it computed twice, where it has one."""
    continuing = [turn for turn in answered if turn.turn > 0]
    continuing_prompt_tokens = sum(turn.prompt_tokens for turn in continuing)
    output_tokens = sum(turn.output_tokens for turn in answered)
    recomputed = run.server.get("recomputed_tokens")
    is_told = continuing_prompt_tokens and run.metadata.get("reports_cached_tokens", True)
    hit_tokens = sum(turn.cached_tokens for turn in continuing)
    return {
        "hit_rate": hit_tokens / continuing_prompt_tokens if is_told else None,
        "preemptions": run.server.get("preemptions"),
        "recomputed_tokens": _recomputed_tokens(run.jobs) if recomputed is None else recomputed,
        "prompt_tokens": sum(turn.prompt_tokens for turn in answered),
        "cached_tokens": sum(turn.cached_tokens for turn in answered),
        "output_tokens": output_tokens,
        "tokens_per_s": output_tokens / run.duration_s if run.duration_s else None,
    }


def _recomputed_tokens(jobs: Sequence[JobOutcome]) -> int:
    """Tokens that an earlier turn of the job had computed, and a later one computed again.

    The last block of a turn is not full and cannot be found again, so it counts here.
    """
    return sum(
        max(0, earlier.prompt_tokens + earlier.output_tokens - later.cached_tokens)
        for job in jobs
        for earlier, later in pairwise(turn for turn in job.turns if turn.error is None)
    )


def _parts(done: Sequence[JobOutcome]) -> dict[str, float | None]:
    """The mean job taken apart; the four add up to mean_s."""
    parts = [job.parts for job in done]
    return {
        "mean_to_first_token_s": mean([part.to_first_token_s for part in parts]),
        "mean_decode_s": mean([part.decode_s for part in parts]),
        "mean_tools_s": mean([part.tools_s for part in parts]),
        "mean_other_s": mean([part.other_s for part in parts]),
    }


def _by_turn(answered: Sequence[TurnOutcome]) -> dict[str, list[float | None]]:
    """A list a number, one entry a turn; every turn up to the last that any job had."""
    by_turn: dict[int, list[TurnOutcome]] = defaultdict(list)
    for turn in answered:
        by_turn[turn.turn].append(turn)
    turns = [by_turn.get(number, []) for number in range(max(by_turn, default=-1) + 1)]
    to_first_token_s = [[turn.to_first_token_s for turn in same] for same in turns]
    return {
        "per_turn_avg_latency_ms": [_mean_ms([turn.latency_s for turn in same]) for same in turns],
        "per_turn_avg_prompt_tokens": [mean([turn.prompt_tokens for turn in t]) for t in turns],
        "per_turn_avg_cached_tokens": [mean([turn.cached_tokens for turn in t]) for t in turns],
        "per_turn_avg_ttft_ms": [_mean_ms(times_s) for times_s in to_first_token_s],
        "per_turn_p99_ttft_ms": [_ms(quantile(times_s, 0.99)) for times_s in to_first_token_s],
        "per_turn_max_ttft_ms": [_ms(quantile(times_s, 1.0)) for times_s in to_first_token_s],
    }


def _reference_keys(durations_s: Sequence[float]) -> Mapping[str, Any]:
    """The names that the reference experiment's result files have."""
    return {
        "avg_duration_s": mean(durations_s),
        "p90_duration_s": quantile(durations_s, 0.9),
        "p95_duration_s": quantile(durations_s, 0.95),
        "job_durations": list(durations_s),
    }


def _mean_ms(times_s: Sequence[float]) -> float | None:
    return _ms(mean(times_s))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000.0
