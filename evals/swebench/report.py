"""Compares graded runs, a column each: resolved instances, completion times, cache."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from ..figures import in_order
from ..outcomes import describe_durations, mean, summarize
from ..rows import json_object, require_free, write_whole
from ..tables import cell, markdown_table
from .folder import EVAL_FILE, SwebenchRun, read_run
from .grading import STATUSES
from .instances import DAEMON_LESS, SwebenchError

_ROWS: Mapping[str, tuple[str, str]] = {
    "pass_rate": ("pass rate", ".1%"),
    "pass_rate_low": ("its 95% Wilson interval from", ".1%"),
    "pass_rate_high": ("to", ".1%"),
    **{name: (name, "d") for name in STATUSES},
    **{"not_graded": ("not graded", "d"), "completed": ("agents that ended", "d")},
    **{"failed": ("failed", "d"), "not_run": ("not run", "d")},
    **{f"{name}_s": (f"JCT {name}, s", ".1f") for name in ("mean", "p50", "p90", "p99", "max")},
    **{"jobs_per_hour": ("jobs an hour", ".0f"), "turns_mean": ("turns a job", ".1f")},
    **{f"turn_{name}_s": (f"turn {name}, s", ".2f") for name in ("mean", "p99", "max")},
    "mean_tools_s": ("tools a job, s", ".1f"),
    **{"hit_rate": ("hits of later turns", ".1%"), "recomputed_tokens": ("recomputed", ",")},
    **{"prompt_tokens": ("prompt tokens", ","), "output_tokens": ("output tokens", ",")},
    "preemptions": ("preempted", ","),
}
"""Number -> heading and how it looks."""
_WITH_RATIO = ("mean_s", "p50_s", "p90_s", "p99_s", "max_s", "turn_mean_s")
_ALIKE = ("model", "environment", "step_limit", "workers", "mode", "harness_version")
"""Conditions that runs must share to be compared."""
Entry = dict[str, Any]
"""One run in the document, all its numbers flat."""


def report(
    folders: Sequence[Path], out: Path, *, baseline: str | None = None, is_forced: bool = False
) -> dict[str, Any]:
    """Write `report.md` and `report.json`, and return the content of the latter.

    A run's own folder is written again without asking. Raises InputError for another one that has
    a report, and SwebenchError for runs on different instances.
    """
    document = compare(folders, baseline)
    require_free(out / "report.json", force=is_forced or out in folders)
    document["files"] = {"markdown": str(out / "report.md"), "json": str(out / "report.json")}
    write_whole(out / "report.md", page(document))
    write_whole(out / "report.json", json.dumps(document, indent=1) + "\n")
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
    is_unique = len(set(order)) == len(runs)
    entries = [
        _entry(run, run.policy if is_unique else f"{run.policy} {run.document['run_id']}")
        for run in runs
    ]
    chosen = [one for one in entries if baseline in (None, one["name"], one["policy"])]
    if not chosen:
        allowed = ", ".join(one["name"] for one in entries)
        raise SwebenchError(f"--baseline: got {baseline!r}, the runs are {allowed}")
    for entry in entries:
        both = ((name, entry[name], chosen[0][name]) for name in _WITH_RATIO)
        entry["ratios"] = {
            name: mine / its for name, mine, its in both if entry is not chosen[0] and mine and its
        }
    return {
        "baseline": chosen[0]["name"],
        "conditions": _conditions(runs, entries),
        "runs": entries,
    }


def _entry(run: SwebenchRun, name: str) -> Entry:
    """The numbers of a run; times are of agents that ended by themselves or at a limit."""
    path, total = run.folder / EVAL_FILE, len(run.document["instance_ids"])
    facts = json_object(str(path), path.read_bytes()) if path.exists() else {}
    hashes = {one: found.patch_sha256 for one, found in run.instances.items()}
    graded = {  # a resumed run may have other patches than those that were graded
        one: entry
        for one, entry in facts.get("results", {}).items()
        if entry.get("patch_sha256") == hashes.get(one)
    }
    counts = Counter(entry["status"] for entry in graded.values())
    rates: Entry = dict.fromkeys(("pass_rate", "pass_rate_low", "pass_rate_high"))
    if 0 < counts.total() == total:  # it is of all instances of the run
        found = binomtest(counts["resolved"], total)
        low, high = found.proportion_ci(0.95, method="wilson")
        rates = dict(zip(rates, map(float, (found.statistic, low, high)), strict=True))
    outcome = run.outcome()
    ended = [job for job in outcome.jobs if job.status == "done"]
    latencies_s = describe_durations([turn.latency_s for job in ended for turn in job.turns])
    return {
        "name": name,
        **{name: run.document[name] for name in ("policy", "run_id")},
        "run": str(run.folder),
        **{name: facts.get(name) for name in ("mode", "harness_version")},
        "instances": total,
        **{status: counts[status] if facts else None for status in STATUSES},
        "not_graded": total - counts.total(),
        **rates,
        **summarize(outcome),
        "not_run": total - len(outcome.jobs),
        "exit_statuses": dict(Counter(one.exit_status for one in run.instances.values())),
        "turns_mean": mean([len(job.turns) for job in ended]),
        **{f"turn_{name}": value for name, value in latencies_s.items()},
        "results": graded,
    }


def _conditions(runs: Sequence[SwebenchRun], entries: Sequence[Entry]) -> list[str]:
    """Return how the runs were made, and what a reader must know before comparing them."""
    pairs = list(zip(runs, entries, strict=True))
    found = [
        f"{entries[0]['instances']} instances of {runs[0].document.get('dataset')}",
        "JCT: seconds from an agent's start to its end, of agents that ended",
    ]
    for name in (*_ALIKE, "commit"):
        told = dict.fromkeys(str({**run.document, **one}.get(name)) for run, one in pairs)
        is_apart = len(told) > 1 and name in _ALIKE
        found.append(f"{'**the runs differ in** ' if is_apart else ''}{name}: {', '.join(told)}")
    if any(one["mode"] == DAEMON_LESS for one in entries):
        found.append(
            "**daemon-less grading**: not a result of the official evaluation, which runs in the "
            "instances' images"
        )
    for one in entries:
        if one["mode"] is not None and one["not_graded"]:
            left = f"{one['name']}: {one['not_graded']} patches"
            found.append(f"**not graded yet**, so no pass rate: {left}; `agentkv swebench eval`")
        if one["not_run"]:
            found.append(f"**not run to its end**: {one['name']}")
    return found


def page(document: Mapping[str, Any]) -> str:
    """Return the report as Markdown, a column a run."""
    runs: Sequence[Entry] = document["runs"]
    rows = [
        [heading, *(_cell(one, name, form) for one in runs)]
        for name, (heading, form) in _ROWS.items()
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
        "\n".join(["## Errors and empty patches", "", *reasons]) if reasons else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(run: Entry, name: str, form: str) -> str:
    """A number with its ratio to the baseline; `-` if it is not known."""
    ratio = run["ratios"].get(name)
    return cell(run[name], form) + (f" (x {ratio:.2f})" if ratio else "")
