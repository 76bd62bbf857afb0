"""Compares graded runs, a line each: resolved instances next to completion times and cache."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from ..outcomes import mean, summarize
from ..rows import json_object, write_whole
from ..tables import cell, markdown_table
from .folder import EVAL_FILE, SwebenchRun, read_run
from .grading import STATUSES
from .instances import DAEMON_LESS, SwebenchError

_CONDITIONS = ("policy", "model", "workers", "configs", "mode", "harness_version")
_NUMBERS = {
    **{f"{name}_s": (f"JCT {name}, s", ".1f") for name in ("mean", "p50", "p90", "p99")},
    **{"jobs_per_hour": ("jobs/h", ".0f"), "turns_mean": ("turns a job", ".1f")},
    **{"turn_mean_s": ("turn, s", ".2f"), "mean_tools_s": ("tools a job, s", ".1f")},
    **{"hit_rate": ("hits", ".1%"), "preemptions": ("preempted", ",")},
}
"""Number -> heading and how it looks."""
_NOTES = """
JCT: seconds from an agent's start to its end, of agents that ended. In brackets: 95% Wilson
interval of the pass rate, and times over the first run's.
""".strip()
_UNOFFICIAL = """
**daemon-less grading** is not a result of the official evaluation, which runs in the instances'
images.
""".strip()
Entry = dict[str, Any]
"""One run in the document, all its numbers flat."""


def report(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write `report.md` and `report.json`, and return the content of the latter.

    Raises SwebenchError for runs on different instances.
    """
    runs = [read_run(folder) for folder in folders]
    for other in runs[1:]:
        for name in ("instance_ids", "dataset_sha256"):
            if runs[0].document.get(name) != other.document.get(name):
                raise SwebenchError(
                    f"{runs[0].folder} and {other.folder} differ in {name}: run both on the same "
                    "--instances, --slice and --filter"
                )
    entries = [_entry(run) for run in runs]
    files = {"markdown": str(out / "report.md"), "json": str(out / "report.json")}
    document = {"runs": entries, "files": files}
    write_whole(out / "report.md", page(entries))
    write_whole(out / "report.json", json.dumps(document, indent=1) + "\n")
    return document


def _entry(run: SwebenchRun) -> Entry:
    """The numbers of a run; times are of agents that ended by themselves or at a limit."""
    path, total = run.folder / EVAL_FILE, len(run.document["instance_ids"])
    facts = json_object(str(path), path.read_bytes()) if path.exists() else {}
    graded = facts.get("results", {})
    counts = Counter(entry["status"] for entry in graded.values())
    pass_rate = interval = None
    if 0 < counts.total() == total:  # it is of all instances of the run
        found = binomtest(counts["resolved"], total)
        pass_rate = float(found.statistic)
        interval = [float(bound) for bound in found.proportion_ci(0.95, method="wilson")]
    outcome = run.outcome()
    turns = [job.turns for job in outcome.jobs if job.status == "done"]
    return {
        **summarize(outcome),
        **{name: {**run.document, **facts}.get(name) for name in _CONDITIONS},
        "run": str(run.folder),
        **{status: counts[status] if graded else None for status in STATUSES},
        "not_graded": total - counts.total(),
        **{"pass_rate": pass_rate, "pass_rate_interval": interval},
        "not_run": total - len(outcome.jobs),
        "turns_mean": mean(list(map(len, turns))),
        "turn_mean_s": mean([turn.latency_s for of_job in turns for turn in of_job]),
        "results": graded,
    }


def page(runs: Sequence[Entry]) -> str:
    """Return the report as Markdown."""
    headings = [heading for heading, _ in _NUMBERS.values()]
    rows = [
        [
            *(Path(run["run"]).name, run["policy"], run["mode"] or "-", _resolved(run)),
            *(run["completed"], run["failed"], run["not_run"]),
            *(_number(name, run, runs[0]) for name in _NUMBERS),
        ]
        for run in runs
    ]
    counts = ["run", "policy", "grading", "resolved", "ended", "failed", "not run"]
    reasons = [
        f"- {run['run']}, `{name}`: {result['status']}: {' '.join(result['detail'].split())}"
        for run in runs
        for name, result in run["results"].items()
        if result["status"] in ("error", "empty")
    ]
    parts = [
        "# SWE-bench: pass rate, completion time and cache",
        markdown_table([*counts, *headings], rows),
        _NOTES,
        _UNOFFICIAL if DAEMON_LESS in [run["mode"] for run in runs] else "",
        "\n".join(["## Errors and empty patches", "", *reasons]) if reasons else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _resolved(run: Entry) -> str:
    if run["pass_rate"] is None:
        return "-"
    low, high = run["pass_rate_interval"]
    return f"{run['pass_rate']:.1%} ({low:.1%}-{high:.1%})"


def _number(name: str, run: Entry, first: Entry) -> str:
    """A number, a time with its ratio to the first run's; `-` if it is not known."""
    text = cell(run[name], _NUMBERS[name][1])
    has_ratio = run is not first and name.endswith("_s") and run[name] and first[name]
    return f"{text} (x {run[name] / first[name]:.2f})" if has_ratio else text
