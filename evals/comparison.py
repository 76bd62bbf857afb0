"""Runs of several policies set side by side: means over repeats, ratios within one, and the table.

Every command that plays policies shows this table. Knows nothing of files or of how runs were made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from .outcomes import RunOutcome, summarize
from .tables import text_table

SHOWN: Mapping[str, tuple[str, str]] = {
    "mean_s": ("mean s", ".2f"),
    "p90_s": ("p90 s", ".2f"),
    "p99_s": ("p99 s", ".2f"),
    "max_s": ("max s", ".2f"),
    "ttft_first_mean_s": ("first TTFT s", ".2f"),
    "ttft_continuing_mean_s": ("next TTFT s", ".2f"),
    "jobs_per_hour": ("jobs/h", ".0f"),
    "hit_rate": ("hits", ".1%"),
    "recomputed_tokens": ("recomputed", ",.0f"),
    "preemptions": ("preempted", ",.0f"),
    "done_in_time": ("in time", ".0%"),
    "chat_ttft_p99_s": ("chat TTFT p99 s", ".2f"),
    "step_mean_s": ("step s", ".2f"),
}
"""The table's numbers, each where any policy has it: heading, and how a number looks."""
COMPARED = (
    *SHOWN,
    *("p50_s", "ttft_mean_s", "ttft_first_p99_s", "ttft_continuing_p99_s"),
    *("ttft_continuing_max_s", "duration_s", "tokens_per_s"),
)
"""Numbers of a run's summary that are averaged over repeats and set against a baseline's."""
_RATIOS = ("mean_s", "p90_s")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean over repeats; standard deviation (None for one), smallest and largest."""

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


def compare(
    runs: Iterable[RunOutcome], baseline: str, deadline_s: float | None = None
) -> list[PolicyResult]:
    """A result per policy, in the order in which the policies first ran.

    A ratio is taken within one repeat, between runs made one after the other, so what drifts on a
    machine over an hour drops out of it.
    """
    by_policy: dict[str, _Repeats] = {}
    for run in runs:
        summary = summarize(run, deadline_s)
        clients = summary.get("clients", {})
        summary |= {f"{name} mean s": found["mean_s"] for name, found in clients.items()}
        by_policy.setdefault(run.policy, {})[int(run.metadata.get("repeat", 0))] = run, summary
    base = by_policy.get(baseline, {})
    return [_result(policy, repeats, base) for policy, repeats in by_policy.items()]


_Repeats = dict[int, tuple[RunOutcome, dict[str, Any]]]
"""Runs of one policy and their summaries, by the number of the repeat."""


def _result(policy: str, repeats: _Repeats, base: _Repeats) -> PolicyResult:
    summaries = [summary for _, summary in repeats.values()]
    paired = [(repeats[number], base[number]) for number in repeats if number in base]
    outputs = [_same_outputs(run, other) for (run, _), (other, _) in paired]
    values: dict[str, Spread | None] = {}
    ratios: dict[str, Spread | None] = {}
    clients = [name for name in summaries[0] if name.endswith(" mean s")]
    for name in (*COMPARED, *clients):
        values[name] = Spread.of([s[name] for s in summaries if s.get(name) is not None])
        both = [(found.get(name), other.get(name)) for (_, found), (_, other) in paired]
        ratios[name] = Spread.of([mine / its for mine, its in both if its and mine is not None])
    counts = ("jobs", "completed", "failed", "cut")
    return PolicyResult(
        policy=policy,
        repeats=len(repeats),
        **{name: sum(s[name] for s in summaries) for name in counts},
        values=values,
        ratios=ratios,
        turns_compared=sum(compared for compared, _ in outputs),
        turns_differing=sum(differing for _, differing in outputs),
    )


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


def table(results: Sequence[PolicyResult], baseline: str) -> str:
    """A line a policy: its jobs, means over the repeats, and ratios to the baseline with their
    range; then each client's mean."""
    shown = {name: SHOWN.get(name, (name, ".2f")) for name in (*SHOWN, *_clients(results))}
    shown = {name: how for name, how in shown.items() if any(each.values[name] for each in results)}
    ratios = _RATIOS if len(results) > 1 else ()
    rows = [
        [
            *(result.policy, result.repeats, f"{result.completed}/{result.jobs}"),
            *(_with_deviation(result.values[name], form) for name, (_, form) in shown.items()),
            *(_with_range(result.ratios[name]) for name in ratios),
        ]
        for result in results
    ]
    headings = [heading for heading, _ in shown.values()]
    over = [f"{name.removesuffix('_s')} / {baseline}" for name in ratios]
    return text_table(["policy", "runs", "done/jobs", *headings, *over], rows, rule=True)


def _clients(results: Sequence[PolicyResult]) -> list[str]:
    return [name for name in results[0].values if name not in COMPARED] if results else []


def _with_deviation(spread: Spread | None, form: str) -> str:
    if spread is None:
        return "-"
    deviation = "" if spread.deviation is None else f" ±{spread.deviation:{form}}"
    return f"{spread.mean:{form}}{deviation}"


def _with_range(spread: Spread | None) -> str:
    """A mean, with least and most where they differ; `-` for None."""
    if spread is None:
        return "-"
    bounds = "" if spread.least == spread.most else f" ({spread.least:.2f}-{spread.most:.2f})"
    return f"{spread.mean:.2f}{bounds}"
