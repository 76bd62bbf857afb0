"""A comparison as a table of text."""

from __future__ import annotations

from collections.abc import Sequence

from .comparison import PolicyResult, Spread

_COLUMNS = (
    ("mean_s", "mean s", "{:.2f}"),
    ("p90_s", "p90 s", "{:.2f}"),
    ("max_s", "max s", "{:.2f}"),
    ("ttft_continuing_p99_s", "ttft p99 s", "{:.2f}"),
    ("hit_rate", "hit rate", "{:.3f}"),
    ("recomputed_tokens", "recomputed", "{:.0f}"),
    ("preemptions", "preempted", "{:.1f}"),
)
"""Name in the summary, heading, how a number looks. `ttft` is of turns that continue a job."""
_RATIOS = ("mean_s", "p90_s")


def table(results: Sequence[PolicyResult], baseline: str) -> str:
    """A line a policy: jobs, means over the repeats, ratios to the baseline with their range."""
    headings = [
        "policy",
        "runs",
        "done/jobs",
        *(heading for _, heading, _ in _COLUMNS),
        *(f"{name.removesuffix('_s')} / {baseline}" for name in _RATIOS),
    ]
    rows = [headings, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(line.rstrip() for line in [*lines, "", *_outputs(results, baseline)])


def _row(result: PolicyResult) -> list[str]:
    return [
        result.policy,
        str(result.repeats),
        f"{result.completed}/{result.jobs}",
        *(_with_deviation(result.values[name], shape) for name, _, shape in _COLUMNS),
        *(_with_range(result.ratios[name]) for name in _RATIOS),
    ]


def _with_deviation(spread: Spread | None, shape: str) -> str:
    if spread is None:
        return "-"
    deviation = "" if spread.deviation is None else f" ±{shape.format(spread.deviation)}"
    return f"{shape.format(spread.mean)}{deviation}"


def _with_range(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    bounds = "" if spread.least == spread.most else f" ({spread.least:.2f}-{spread.most:.2f})"
    return f"{spread.mean:.2f}{bounds}"


def _outputs(results: Sequence[PolicyResult], baseline: str) -> list[str]:
    """How far outputs are the same, as they must be: scheduling changes timing, never text."""
    return [
        f"{result.policy}: {result.turns_compared - result.turns_differing} of "
        f"{result.turns_compared} turns have the outputs of {baseline}"
        for result in results
        if result.policy != baseline and result.turns_compared
    ]
