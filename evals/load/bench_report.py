"""One run as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .outcomes import RunOutcome
from .summary import summarize


def report(run: RunOutcome) -> str:
    """What happened to the jobs, how long they took, and each turn in a line."""
    found = summarize(run)
    lines = [
        f"{run.policy}, workload {run.workload.get('name')}, {_rate(run.workload)}: "
        f"{found['jobs']} jobs: {found['completed']} done, {found['failed']} failed, "
        f"{found['cut']} cut, in {found['duration_s']:.1f} s",
        _row("job duration", found, ("mean_s", "p50_s", "p90_s", "p99_s", "max_s")),
        _row(
            "first token",
            found,
            ("ttft_mean_s", "ttft_first_p99_s", "ttft_continuing_p99_s", "ttft_continuing_max_s"),
        ),
        f"cache         {_share(found['hit_rate'])} of continuing prompts, "
        f"{found['recomputed_tokens']} tokens computed again, "
        f"{_count(found['preemptions'])} preemptions",
        f"output        {found['output_tokens']} tokens, "
        f"{_number(found['tokens_per_s'])} per second",
        "",
        " turn  prompt tokens  cached tokens  latency ms  first token ms",
    ]
    columns = ("prompt_tokens", "cached_tokens", "latency_ms", "ttft_ms")
    by_turn = zip(*(found[f"per_turn_avg_{name}"] for name in columns), strict=True)
    for turn, (prompt, cached, latency, first) in enumerate(by_turn, start=1):
        lines.append(
            f"{turn:5}  {_number(prompt):>13}  {_number(cached):>13}  {_number(latency):>10}  "
            f"{_number(first):>14}"
        )
    return "\n".join(lines + _errors(run))


def _rate(workload: Mapping[str, Any]) -> str:
    if workload.get("concurrency") is not None:
        return f"{workload['concurrency']} at once"
    return "given times" if workload.get("jps") is None else f"{workload['jps']:g} jobs/s"


def _row(title: str, found: Mapping[str, Any], names: tuple[str, ...]) -> str:
    shown = (f"{name.removesuffix('_s')} {_seconds(found[name])}" for name in names)
    return f"{title:13} {', '.join(shown)}"


def _errors(run: RunOutcome) -> list[str]:
    """The different reasons why jobs failed, most frequent first."""
    reasons = [job.turns[-1].error or "" for job in run.jobs if job.status == "failed"]
    counted = sorted({reason: reasons.count(reason) for reason in reasons}.items(), key=_by_count)
    return (
        ["", *(f"failed ({count}): {reason}" for reason, count in counted[:3])] if counted else []
    )


def _by_count(entry: tuple[str, int]) -> int:
    return -entry[1]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _share(value: float | None) -> str:
    return "an unknown share" if value is None else f"{value:.1%}"
