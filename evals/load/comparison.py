"""Compares policies over repeated runs of the same jobs: means, spread, ratios to a baseline.

A ratio is taken within one repeat, between runs made one after the other, so that what drifts on a
machine over an hour drops out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from .outcomes import RunOutcome
from .summary import summarize

COMPARED = (
    "mean_s",
    "p50_s",
    "p90_s",
    "p99_s",
    "max_s",
    "ttft_mean_s",
    "ttft_first_p99_s",
    "ttft_continuing_p99_s",
    "ttft_continuing_max_s",
    "duration_s",
    "tokens_per_s",
    "hit_rate",
    "recomputed_tokens",
    "preemptions",
)
"""Numbers of a run's summary that are averaged over repeats and set against the baseline's."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean over the repeats; standard deviation (None for one), smallest and largest."""

    mean: float
    deviation: float | None
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        deviation = stdev(values) if len(values) > 1 else None
        return cls(fmean(values), deviation, min(values), max(values))


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """One policy over all its repeats; `ratios` are to the baseline, repeat by repeat.

    `turns_compared` turns had the same prompt under both policies; `turns_differing` of them got
    another output, which floating point alone can do: sums over other batches round otherwise.
    """

    policy: str
    repeats: int
    jobs: int
    completed: int
    failed: int
    cut: int
    values: Mapping[str, Spread | None]
    ratios: Mapping[str, Spread | None]
    turns_compared: int
    turns_differing: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(runs: Sequence[RunOutcome], baseline: str) -> list[PolicyResult]:
    """A result per policy, in the order in which the policies first ran."""
    by_policy: dict[str, dict[int, RunOutcome]] = {}
    for run in runs:
        by_policy.setdefault(run.policy, {})[int(run.metadata.get("repeat", 0))] = run
    base = by_policy.get(baseline, {})
    return [_result(policy, repeats, base) for policy, repeats in by_policy.items()]


def _result(
    policy: str, repeats: Mapping[int, RunOutcome], base: Mapping[int, RunOutcome]
) -> PolicyResult:
    summaries = {repeat: summarize(run) for repeat, run in repeats.items()}
    bases = {repeat: summarize(run) for repeat, run in base.items() if repeat in repeats}
    outputs = [
        _same_outputs(run, base[repeat]) for repeat, run in repeats.items() if repeat in base
    ]
    return PolicyResult(
        policy=policy,
        repeats=len(repeats),
        **{
            name: sum(summary[name] for summary in summaries.values())
            for name in ("jobs", "completed", "failed", "cut")
        },
        values={name: Spread.of(_values(summaries.values(), name)) for name in COMPARED},
        ratios={
            name: Spread.of(
                [
                    summaries[repeat][name] / bases[repeat][name]
                    for repeat in bases
                    if bases[repeat][name] and summaries[repeat][name] is not None
                ]
            )
            for name in COMPARED
        },
        turns_compared=sum(compared for compared, _ in outputs),
        turns_differing=sum(differing for _, differing in outputs),
    )


def _values(summaries: Any, name: str) -> list[float]:
    return [summary[name] for summary in summaries if summary[name] is not None]


def _same_outputs(run: RunOutcome, base: RunOutcome) -> tuple[int, int]:
    """Turns compared and turns that differ; behind a turn that differs prompts differ, too."""
    expected = {job.job_id: job.turns for job in base.jobs}
    compared = differing = 0
    for job in run.jobs:
        for turn, other in zip(job.turns, expected.get(job.job_id, ()), strict=False):
            if turn.output_digest is None or other.output_digest is None:
                break
            compared += 1
            if turn.output_digest != other.output_digest:
                differing += 1
                break
    return compared, differing
