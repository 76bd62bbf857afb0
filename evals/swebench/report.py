"""Compares graded runs, a column each: conditions, resolved instances, completion times, cache."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from ..outcomes import describe_durations, mean, summarize
from ..rows import json_object, require_free, write_whole
from ..tables import cell, markdown_table
from .folder import EVAL_FILE, SwebenchRun, read_run
from .grading import OF_RUN, STATUSES
from .instances import DAEMON_LESS, SwebenchError

_CONDITIONS = ("policy", "model", "environment", "step_limit", "workers", "mode", "harness_version")
_NUMBERS: Mapping[str, tuple[str, str]] = {
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
    "hit_rate": ("hits of later turns", ".1%"),
    **{"prompt_tokens": ("prompt tokens", ","), "output_tokens": ("output tokens", ",")},
    "preemptions": ("preempted", ","),
}
"""Number -> heading and how it looks."""
_UNOFFICIAL = """
**daemon-less grading** is not a result of the official evaluation, which runs in the instances'
images.
"""
Entry = dict[str, Any]
"""One run in the document, all its numbers flat."""


def report(folders: Sequence[Path], out: Path, *, is_forced: bool = False) -> dict[str, Any]:
    """Write `report.md` and `report.json`, and return the content of the latter.

    A run's own folder is written again without asking. Raises InputError for another one that has
    a report, and SwebenchError for runs on different instances.
    """
    document = compare(folders)
    require_free(out / "report.json", force=is_forced or out in folders)
    document["files"] = {"markdown": str(out / "report.md"), "json": str(out / "report.json")}
    write_whole(out / "report.md", page(document["runs"]))
    write_whole(out / "report.json", json.dumps(document, indent=1) + "\n")
    return document


def compare(folders: Sequence[Path]) -> dict[str, Any]:
    """Read the runs; SwebenchError if their instances differ. Ratios are to the first one."""
    runs = [read_run(folder) for folder in folders]
    for other in runs[1:]:
        for name in ("instance_ids", "dataset_sha256"):
            if runs[0].document.get(name) != other.document.get(name):
                raise SwebenchError(
                    f"{runs[0].folder} and {other.folder} differ in {name}: run both on the same "
                    "--instances, --slice and --filter"
                )
    entries = [_entry(run) for run in runs]
    for entry in entries[1:]:
        both = ((name, entry[name], entries[0][name]) for name in _NUMBERS if name.endswith("_s"))
        entry["ratios"] = {name: mine / its for name, mine, its in both if mine and its}
    return {"runs": entries}


def _entry(run: SwebenchRun) -> Entry:
    """The numbers of a run; times are of agents that ended by themselves or at a limit."""
    path, total = run.folder / EVAL_FILE, len(run.document["instance_ids"])
    facts = json_object(str(path), path.read_bytes()) if path.exists() else {}
    is_of_run = all(facts.get(name) == run.document.get(name) for name in OF_RUN)
    graded = facts["results"] if facts and is_of_run else {}
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
        **summarize(outcome),
        **{name: {**run.document, **facts}.get(name) for name in _CONDITIONS},
        "run": str(run.folder),
        **{status: counts[status] if graded else None for status in STATUSES},
        "not_graded": total - counts.total(),
        **rates,
        "not_run": total - len(outcome.jobs),
        "turns_mean": mean([len(job.turns) for job in ended]),
        **{f"turn_{name}": value for name, value in latencies_s.items()},
        "results": graded,
        "ratios": {},
    }


def page(runs: Sequence[Entry]) -> str:
    """Return the report as Markdown, a column a run."""
    rows = [
        *([name.replace("_", " "), *(str(run[name]) for run in runs)] for name in _CONDITIONS),
        *(
            [head, *(_cell(run, name, form) for run in runs)]
            for name, (head, form) in _NUMBERS.items()
        ),
    ]
    reasons = [
        f"- {run['run']}, `{name}`: {result['status']}: {' '.join(result['detail'].split())}"
        for run in runs
        for name, result in run["results"].items()
        if result["status"] in ("error", "empty")
    ]
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        markdown_table(["", *(Path(run["run"]).name for run in runs)], rows),
        "JCT: seconds from an agent's start to its end, of agents that ended.",
        _UNOFFICIAL.strip() if DAEMON_LESS in [run["mode"] for run in runs] else "",
        "\n".join(["## Errors and empty patches", "", *reasons]) if reasons else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(run: Entry, name: str, form: str) -> str:
    """A number with its ratio to the first run's; `-` if it is not known."""
    ratio = run["ratios"].get(name)
    return cell(run[name], form) + (f" (x {ratio:.2f})" if ratio else "")
