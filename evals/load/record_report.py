"""The record as plain text: a line for each job, then what it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COLUMNS = (
    ("turns", 5),
    ("span s", 7),
    ("tools s", 7),
    ("queue s", 7),
    ("hit", 5),
    ("prompt tok", 10),
    ("evicted", 7),
    ("wait after s", 12),
    ("pins", 5),
    ("kept", 5),
    ("wasted", 6),
    ("preempted", 9),
)
LEGEND = (
    "tools, queue: the time between a turn's end and the next one's start, before and after that"
    "\none arrived; hit: share of the continuing turns' prompts found in the cache; evicted: turns"
    "\nwhose cache was gone, and how long those waited; kept: pins their job came back to; wasted:"
    "\npins that expired or yielded first"
)
_MAX_LABEL_CHARS = 24


def table(rows: Sequence[Mapping[str, Any]], *, max_rows: int) -> list[str]:
    """The first `max_rows` jobs as aligned lines, with a header and how many were left out."""
    shown = rows[:max_rows]
    labels = [_label(row) for row in shown]
    width = max([len(label) for label in labels] + [3])
    header = "  ".join(f"{name:>{size}}" for name, size in _COLUMNS)
    lines = [f"{'job':{width}}  {header}  closed"]
    for label, row in zip(labels, shown, strict=True):
        cells = "  ".join(
            f"{cell:>{size}}" for cell, (_, size) in zip(_cells(row), _COLUMNS, strict=True)
        )
        lines.append(f"{label:{width}}  {cells}  {row['close_reason'] or 'open'}")
    if len(rows) > max_rows:
        lines.append(f"... {len(rows) - max_rows} more jobs (--top {len(rows)} shows all)")
    return lines


def _label(row: Mapping[str, Any]) -> str:
    job_id = str(row["job_id"])
    if len(job_id) > _MAX_LABEL_CHARS:
        job_id = job_id[: _MAX_LABEL_CHARS - 1] + "…"
    engine = "" if row["engine"] is None else f" @{row['engine']}"
    return job_id + engine + (f" ({row['life']})" if row["life"] > 1 else "")


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    waits_s = row["queued_evicted_s"]
    return (
        row["turns"],
        f"{row['ended_s'] - row['started_s']:.2f}",
        f"{sum(row['bubble_tools_s']):.2f}",
        f"{sum(row['bubble_queued_s']):.2f}",
        _percent(row["hit_rate"]),
        row["prompt_tokens"],
        row["turns_evicted"],
        f"{sum(waits_s) / len(waits_s):.3f}" if waits_s else "-",
        row["pins"],
        row["pins_kept"],
        row["pins_wasted"],
        row["preemptions"],
    )


def summary(total: Mapping[str, Any]) -> list[str]:
    """What all jobs add up to, in a few lines."""
    ends = ", ".join(f"{n} {end}" for end, n in sorted(total["pin_ends"].items())) or "none ended"
    held = total["kept_block_s"] + total["wasted_block_s"]
    wasted_share = total["wasted_block_s"] / held if held else None
    return [
        f"{total['jobs']} jobs, {total['turns']} turns ({total['turns_finished']} finished, "
        f"{total['turns_aborted']} aborted), {total['preemptions']} preemptions",
        f"bubbles      {_seconds(total['bubble_s'])}",
        f"  tools      {_seconds(total['bubble_tool_s'])}",
        f"  queue      {_seconds(total['bubble_queued_s'])}",
        f"hits         {total['hit_tokens']} of {total['prompt_tokens']} prompt tokens of "
        f"continuing turns ({_percent(total['hit_rate'])}); {total['expected_hit_tokens']} of them "
        "repeat the turn before",
        f"evicted      {total['turns_evicted']} turns lost {total['lost_tokens']} tokens; "
        f"{total['turns_diverged']} turns changed their history",
        f"queueing     first turns {_seconds(total['queued_first_s'])}",
        f"  evicted    {_seconds(total['queued_evicted_s'])}",
        f"  cache held {_seconds(total['queued_kept_s'])}",
        *_passed_over(total["passed_over"]),
        f"pins         {total['pins']}: {ends}; {_percent(wasted_share)} of the blocks x seconds "
        "held by kept and wasted pins were wasted",
    ]


def _passed_over(found: Mapping[str, Any]) -> list[str]:
    first, continuing = found["first"], found["continuing"]
    return [
        f"passed over  first turns {_overtaken(first)}",
        f"  continuing {_overtaken(continuing)}",
    ]


def _overtaken(count: Mapping[str, Any]) -> str:
    return (
        f"{count['waited_longer']} of {count['turns']} waited longer than {count['after_s']:g} s; "
        f"{count['passed_over']} of these saw turns of later jobs start after that, at most "
        f"{count['most']}"
    )


def _seconds(spread: Mapping[str, Any]) -> str:
    if not spread["n"]:
        return "none"
    return (
        f"mean {spread['mean']:.3f} s, p50 {spread['p50']:.3f}, p90 {spread['p90']:.3f}, "
        f"max {spread['max']:.3f}  (n={spread['n']})"
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
