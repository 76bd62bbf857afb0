"""Graded runs as a page of Markdown: a column a run, so that policies stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .eval_results import STATUSES
from .report_comparison import Comparison, ReportedRun

Row = tuple[str, str, str]
"""Heading, name in the summary, how a value looks."""
_JOB_TIMES: tuple[Row, ...] = (
    ("JCT mean", "jct_mean_s", "{:.1f} s"),
    ("JCT p50", "jct_p50_s", "{:.1f} s"),
    ("JCT p90", "jct_p90_s", "{:.1f} s"),
    ("JCT p99", "jct_p99_s", "{:.1f} s"),
    ("JCT max", "jct_max_s", "{:.1f} s"),
)
_TURNS: tuple[Row, ...] = (
    ("turns per job", "turns_mean", "{:.1f}"),
    ("turn latency mean", "turn_llm_mean_s", "{:.2f} s"),
    ("turn latency p50", "turn_llm_p50_s", "{:.2f} s"),
    ("turn latency p90", "turn_llm_p90_s", "{:.2f} s"),
    ("turn latency p99", "turn_llm_p99_s", "{:.2f} s"),
    ("turn latency max", "turn_llm_max_s", "{:.2f} s"),
    ("tool time mean", "turn_tool_mean_s", "{:.2f} s"),
)
_CACHE: tuple[Row, ...] = (
    ("cached share, continuing turns", "cached_share", "{:.1%}"),
    ("cached share, first turns", "cached_share_first", "{:.1%}"),
    ("prompt tokens", "prompt_tokens", "{:,}"),
    ("output tokens", "output_tokens", "{:,}"),
    ("preemptions", "preemptions", "{:,}"),
)
_MAX_REASONS = 40


def markdown(comparison: Comparison) -> str:
    """The whole page, ending in a line feed."""
    runs = comparison.runs
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        "\n".join(f"- {line}" for line in comparison.conditions()),
        _table(runs, _rows(comparison)),
        _paired(comparison),
        _reasons(runs),
        *(f"![{name}]({name})" for name in comparison.figures),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(runs: Sequence[ReportedRun], rows: Sequence[Sequence[str]]) -> str:
    heading = ["", *(run.name for run in runs)]
    rule = ["---", *("---:" for _ in runs)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, rule, *rows))


def _rows(comparison: Comparison) -> list[list[str]]:
    runs = comparison.runs
    summaries = [run.summary for run in runs]
    rows = [
        ["graded", *(run.graded_by for run in runs)],
        ["pass rate (95% Wilson)", *(_pass_rate(summary) for summary in summaries)],
        *(
            [status, *(_cell(summary[status], "{}") for summary in summaries)]
            for status in STATUSES
        ),
        ["not graded", *(_cell(summary["not_graded"], "{}") for summary in summaries)],
        ["agents that ended", *(_ended(summary) for summary in summaries)],
        ["agents' exits", *(_exits(summary["exit_statuses"]) for summary in summaries)],
    ]
    for heading, name, shape in _JOB_TIMES:
        cells = [_cell(summary[name], shape) for summary in summaries]
        ratios = [comparison.ratio(run, name) for run in runs]
        rows.append([heading, *map(_with_ratio, cells, ratios)])
    for heading, name, shape in (*_TURNS, *_CACHE):
        rows.append([heading, *(_cell(summary[name], shape) for summary in summaries)])
    rows.append(["pins", *(_pins(summary) for summary in summaries)])
    return rows


def _cell(value: Any, shape: str) -> str:
    return "-" if value is None else shape.format(value)


def _with_ratio(cell: str, ratio: float | None) -> str:
    return cell if ratio is None else f"{cell} (x {ratio:.2f})"


def _pass_rate(summary: Mapping[str, Any]) -> str:
    if summary["pass_rate"] is None:
        return "not graded"
    low, high = summary["pass_rate_low"], summary["pass_rate_high"]
    return f"{summary['pass_rate']:.1%} ({low:.1%} to {high:.1%})"


def _ended(summary: Mapping[str, Any]) -> str:
    parts = [f"{summary['completed']} of {summary['instances']}"]
    parts += [
        f"{summary[name]} {what}"
        for name, what in (("failed", "failed"), ("not_run", "not run"))
        if summary[name]
    ]
    return ", ".join(parts)


def _exits(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {status}" for status, count in statuses.items()) or "-"


def _pins(summary: Mapping[str, Any]) -> str:
    if summary["pins"] is None:
        return "-"
    ends = ", ".join(f"{n} {why}" for why, n in (summary["pin_ends"] or {}).items() if n)
    return f"{summary['pins']} ({ends})" if ends else str(summary["pins"])


def _paired(comparison: Comparison) -> str:
    lines = [
        f"- {run.name}: {only_here} resolved here and not under {comparison.baseline.name}, "
        f"{only_there} the other way round"
        for run in comparison.runs
        if run is not comparison.baseline and (counts := comparison.resolved_apart(run)) is not None
        for only_here, only_there in [counts]
    ]
    return "\n".join(lines)


def _reasons(runs: Sequence[ReportedRun]) -> str:
    """Every instance that is not resolved for a reason that is not its tests."""
    lines = [
        f"- {run.name}, `{instance_id}`: {verdict.status}: {' '.join(verdict.detail.split())}"
        for run in runs
        for instance_id, verdict in (run.verdicts or {}).items()
        if verdict.status in ("error", "empty")
    ]
    if not lines:
        return ""
    left_out = len(lines) - _MAX_REASONS
    more = [f"- ... {left_out} more in `report.json`"] if left_out > 0 else []
    return "\n".join(["## Errors and empty patches", "", *lines[:_MAX_REASONS], *more])
