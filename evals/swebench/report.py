"""Compares graded runs: pass rate, completion times, cache; as JSON and Markdown.

Called by the commands `report` and `demo`. `compare` reads the folders of runs into one document;
the page is made from that document alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import binomtest

from ..figures import in_order
from ..outcomes import describe_durations, mean
from ..rows import require_free, write_whole
from ..tables import cell, markdown_table
from .folder import ERROR_PREFIX, EVAL_FILE, SwebenchRun, read_object, read_run
from .grading import STATUSES, patch_sha256
from .instances import DAEMON_LESS, SwebenchError

MARKDOWN_FILE, JSON_FILE = "report.md", "report.json"
_DAEMON_LESS_WARNING = (
    "**daemon-less grading**: not a result of the official evaluation, which runs in the "
    "instances' images"
)
_SHARES = ("mean", "p50", "p90", "p99", "max")
_ROWS = (
    *(("graded in", "mode", ""), ("harness", "harness_version", "")),
    *(("pass rate", "pass_rate", ".1%"), ("its 95% Wilson interval from", "pass_rate_low", ".1%")),
    ("to", "pass_rate_high", ".1%"),
    *((name.replace("_", " "), name, "d") for name in (*STATUSES, "not_graded")),
    *(("agents that ended", "completed", "d"), ("failed", "failed", "d")),
    *(("not run", "not_run", "d"), ("agents' exits", "exit_statuses", "")),
    *((f"JCT {name}, s", f"jct_{name}_s", ".1f") for name in _SHARES),
    ("turns per job", "turns_mean", ".1f"),
    *((f"turn latency {name}, s", f"turn_llm_{name}_s", ".2f") for name in _SHARES),
    ("tool time mean, s", "turn_tool_mean_s", ".2f"),
    ("cached share, continuing turns", "cached_share", ".1%"),
    ("cached share, first turns", "cached_share_first", ".1%"),
    *(("prompt tokens", "prompt_tokens", ","), ("output tokens", "output_tokens", ",")),
    *(("pins", "pins", "d"), ("ends of pins", "pin_ends", ""), ("preemptions", "preemptions", ",")),
)
"""Heading, name of the number, format."""
_TURN_FIELDS = ("turn", "llm_s", "tool_s", "prompt_tokens", "cached_tokens", "output_tokens")
_ALIKE = ("model", "environment", "step_limit", "workers", "mode", "harness_version")
"""Conditions that runs must share to be compared."""

Entry = dict[str, Any]
"""One run in the document, all its numbers flat."""


def report(
    folders: Sequence[Path], out: Path, *, baseline: str | None = None, is_forced: bool = False
) -> dict[str, Any]:
    """Write both files, and return the content of the JSON one.

    A run's own folder is written again without asking; elsewhere an existing report stays unless
    `is_forced`. Raises InputError for that, and SwebenchError for runs on different instances.
    """
    document = compare(folders, baseline)
    require_free(out / JSON_FILE, force=is_forced or out in folders)
    files = {"markdown": out / MARKDOWN_FILE, "json": out / JSON_FILE}
    document["files"] = {kind: str(path) for kind, path in files.items()}
    write_whole(files["markdown"], page(document))
    write_whole(files["json"], json.dumps(document, indent=1) + "\n")
    return document


def compare(folders: Sequence[Path], baseline: str | None = None) -> dict[str, Any]:
    """Read the runs, stock policies first; raises SwebenchError if their instances differ.

    `baseline` names the run or policy that ratios are to; default fcfs, or the first run.
    """
    runs = [read_run(folder) for folder in folders]
    for other in runs[1:]:
        for name in ("instance_ids", "dataset_sha256"):
            if runs[0].document.get(name) != other.document.get(name):
                raise SwebenchError(
                    f"{runs[0].folder} and {other.folder} differ in {name}: run both on the same "
                    "--instances, --slice and --filter"
                )
    order = in_order([run.policy for run in runs])
    runs.sort(key=lambda run: order.index(run.policy))
    counts = Counter(run.policy for run in runs)
    entries = [
        _entry(run, run.policy if counts[run.policy] == 1 else f"{run.policy} {run.run_id}")
        for run in runs
    ]
    chosen = [one for one in entries if baseline in (None, one["name"], one["policy"])]
    if not chosen:
        allowed = ", ".join(one["name"] for one in entries)
        raise SwebenchError(f"--baseline: got {baseline!r}, the runs are {allowed}")
    for entry in entries:
        _relate(entry, chosen[0])
    return {
        "baseline": chosen[0]["name"],
        "conditions": _conditions(runs, entries),
        "runs": entries,
    }


def _entry(run: SwebenchRun, name: str) -> Entry:
    facts = read_object(run.folder / EVAL_FILE)
    graded = {  # a resumed run may have other patches than those that were graded
        one: entry
        for one, entry in facts.get("results", {}).items()
        if entry["patch_sha256"] == patch_sha256(run.patch(one))
    }
    total = len(run.instance_ids)
    counts = Counter(entry["status"] for entry in graded.values())
    rates: Entry = dict.fromkeys(("pass_rate", "pass_rate_low", "pass_rate_high"))
    if 0 < counts.total() == total:  # it is of all instances of the run
        found = binomtest(counts["resolved"], total)
        low, high = found.proportion_ci(0.95, method="wilson")
        rates = dict(zip(rates, map(float, (found.statistic, low, high)), strict=True))
    return {
        "name": name,
        "policy": run.policy,
        "run_id": run.run_id,
        "run": str(run.folder),
        "mode": facts.get("mode"),
        "harness_version": facts.get("harness_version"),
        "instances": total,
        **{status: counts[status] if facts else None for status in STATUSES},
        "not_graded": total - counts.total(),
        **rates,
        **_numbers(run),
        "results": graded,
    }


def _numbers(run: SwebenchRun) -> Entry:
    """Times in seconds and tokens, of instances whose agent ended by itself or at a limit."""
    rows = [run.rows[name] for name in run.instance_ids if name in run.rows]
    ended = [row for row in rows if not row["exit_status"].startswith(ERROR_PREFIX)]
    jobs_s = sorted(row["end_s"] - row["start_s"] for row in ended)
    turns = pd.DataFrame([turn for row in ended for turn in row["turns"]], columns=_TURN_FIELDS)
    # the first turn of a job has no tokens of its own to find again
    is_first = turns["turn"] == 1
    stats = run.document.get("server_stats") or {}  # None under a stock policy
    pins = stats.get("pins_total")
    return {
        "completed": len(ended),
        "failed": len(rows) - len(ended),
        "not_run": len(run.instance_ids) - len(rows),
        "exit_statuses": dict(Counter(row["exit_status"] for row in rows).most_common()),
        "jobs_s": jobs_s,
        **_durations("jct", jobs_s),
        "turns_mean": mean([len(row["turns"]) for row in ended]),
        **_durations("turn_llm", turns["llm_s"]),
        **_durations("turn_tool", turns["tool_s"]),
        "prompt_tokens": int(turns["prompt_tokens"].sum()),
        "output_tokens": int(turns["output_tokens"].sum()),
        "cached_share": _cached_share(turns[~is_first]),
        "cached_share_first": _cached_share(turns[is_first]),
        "pins": None if pins is None else sum(pins.values()),
        "pin_ends": stats.get("pin_ends_total"),
        "preemptions": stats.get("preemptions_total"),
    }


def _durations(name: str, values: Any) -> dict[str, float | None]:
    found = describe_durations(values)
    return {f"{name}_{share}_s": found[f"{share}_s"] for share in _SHARES}


def _cached_share(turns: pd.DataFrame) -> float | None:
    """Divide cached by prompt tokens, over the turns whose server reported cached ones."""
    told = turns.dropna(subset="cached_tokens")
    prompt_tokens = told["prompt_tokens"].sum()
    return float(told["cached_tokens"].sum() / prompt_tokens) if prompt_tokens else None


def _relate(entry: Entry, baseline: Entry) -> None:
    """Add the ratios to the baseline, and the instances resolved in one of both only."""
    entry["ratios"] = {
        name: entry[name] / baseline[name]
        if entry is not baseline and baseline[name] and entry[name]
        else None
        for name in (f"jct_{share}_s" for share in _SHARES)
    }
    here, there = (
        {name for name, result in one["results"].items() if result["status"] == "resolved"}
        for one in (entry, baseline)
    )
    is_known = entry["pass_rate"] is not None and baseline["pass_rate"] is not None
    entry["resolved_only_here"] = len(here - there) if is_known else None
    entry["resolved_only_in_baseline"] = len(there - here) if is_known else None


def _conditions(runs: Sequence[SwebenchRun], entries: Sequence[Entry]) -> list[str]:
    """Return how the runs were made, and what a reader must know before comparing them."""
    pairs = list(zip(runs, entries, strict=True))
    found = [
        f"{len(runs[0].instance_ids)} instances of {runs[0].document.get('dataset')}",
        "JCT: seconds from an instance's start to its agent's end, of agents that ended",
    ]
    for name in (*_ALIKE, "commit"):
        told = dict.fromkeys(str({**run.document, **one}.get(name)) for run, one in pairs)
        is_apart = len(told) > 1 and name in _ALIKE
        found.append(f"{'**the runs differ in** ' if is_apart else ''}{name}: {', '.join(told)}")
    if any(one["mode"] == DAEMON_LESS for one in entries):
        found.append(_DAEMON_LESS_WARNING)
    rest = "`agentkv swebench eval` goes on with them"
    for run, one in pairs:
        if one["mode"] is not None and one["not_graded"]:
            left = f"{one['name']}: {one['not_graded']} patches"
            found.append(f"**not graded yet**, so no pass rate: {left}; {rest}")
        if run.document.get("ended_at") is None:
            found.append(f"**not run to its end**: {one['name']}")
    return found


def page(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown, a column a run."""
    runs: Sequence[Entry] = document["runs"]
    rows = [[head, *(_cell(one, name, form) for one in runs)] for head, name, form in _ROWS]
    apart = [
        f"- {one['name']}: {one['resolved_only_here']} resolved here and not under "
        f"{document['baseline']}, {one['resolved_only_in_baseline']} the other way round"
        for one in runs
        if one["name"] != document["baseline"] and one["resolved_only_here"] is not None
    ]
    reasons = [
        f"- {one['name']}, `{name}`: {result['status']}: {' '.join(result['detail'].split())}"
        for one in runs
        for name, result in one["results"].items()
        if result["status"] in ("error", "empty")
    ]
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        "\n".join(f"- {line}" for line in document["conditions"]),
        markdown_table(["", *(one["name"] for one in runs)], rows),
        "\n".join(apart),
        "\n".join(["## Errors and empty patches", "", *reasons]) if reasons else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(run: Entry, name: str, form: str) -> str:
    """Format a number with its ratio to the baseline, or counts by name; `-` if it is not known."""
    value, ratio = run[name], run["ratios"].get(name)
    if isinstance(value, Mapping):
        return ", ".join(f"{count} {what}" for what, count in value.items() if count) or "-"
    return cell(value, form) + (f" (x {ratio:.2f})" if ratio else "")
