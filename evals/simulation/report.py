"""What a simulation comes to: the JSON document and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KEYS = (
    "jobs",
    "completed",
    "failed",
    "cut",
    "mean_s",
    "p50_s",
    "p90_s",
    "p95_s",
    "p99_s",
    "max_s",
    "slowdown_p99",
    "slowdown_max",
    "ttft_first_p99_s",
    "ttft_first_max_s",
    "ttft_continuing_p99_s",
    "ttft_continuing_max_s",
    "hit_rate",
    "preemptions",
    "recomputed_tokens",
    "tokens_per_s",
)
"""What the document says of each policy."""

_COLUMNS = (
    ("mean s", "mean_s", ".2f"),
    ("p50 s", "p50_s", ".2f"),
    ("p99 s", "p99_s", ".2f"),
    ("max s", "max_s", ".2f"),
    ("slowdown p99", "slowdown_p99", ".2f"),
    ("first TTFT p99 s", "ttft_first_p99_s", ".2f"),
    ("next TTFT p99 s", "ttft_continuing_p99_s", ".2f"),
    ("hits", "hit_rate", ".1%"),
    ("preempted", "preemptions", "d"),
    ("recomputed", "recomputed_tokens", ",d"),
)


def policy_entry(summary: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """One policy in the document."""
    reloads = {name: server[name] for name in ("reloads", "reloaded_tokens") if server.get(name)}
    return {**{key: summary[key] for key in KEYS}, **reloads}


def table(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a policy; means also against the first policy's."""
    rows = [["policy", "jobs", "vs first", *(title for title, _, _ in _COLUMNS)]]
    first = next(iter(policies.values()), {})
    for name, entry in policies.items():
        cells = [_cell(entry[key], form) for _, key, form in _COLUMNS]
        done = f"{entry['completed']}/{entry['jobs']}"
        rows.append([name, done, _change(entry["mean_s"], first.get("mean_s")), *cells])
    return _aligned(rows)


def _cell(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)


def _change(mean_s: float | None, first_s: float | None) -> str:
    if mean_s is None or not first_s:
        return "-"
    return f"{mean_s / first_s - 1.0:+.1%}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
