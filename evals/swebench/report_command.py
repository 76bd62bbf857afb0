"""`agentkv swebench report`: graded runs side by side, as Markdown, JSON and one figure."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from ..rows import time_stamp
from .errors import SwebenchError
from .report_comparison import Comparison, ReportedRun, compare
from .report_figure import draw
from .report_table import markdown

MARKDOWN_FILE, JSON_FILE, FIGURE_FILE = "report.md", "report.json", "report.png"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; 0 written, 1 it cannot be written, 2 the runs are none to compare."""
    options = _parser().parse_args(argv)
    out = options.out
    if out is None and len(options.run_dirs) > 1:
        out = Path(f"swebench-report-{time_stamp()}")
    try:
        document = report(options.run_dirs, out, baseline=options.baseline, is_forced=options.force)
    except (AgentKVError, OSError) as error:
        print(f"agentkv swebench report: {error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) else 2
    page = Path(document["files"]["markdown"])
    print(page.read_text(encoding="utf-8"), file=sys.stderr if options.json else sys.stdout)
    print(json.dumps(document))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv swebench report", description=__doc__)
    parser.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument(
        "--out", type=Path, help="default: the run's own folder; of several, swebench-report-TIME"
    )
    parser.add_argument("--baseline", help="policy that ratios are to; default: fcfs or the first")
    parser.add_argument("--force", action="store_true", help="over a report that is in --out")
    parser.add_argument("--json", action="store_true", help="only JSON on standard output")
    return parser


def report(
    folders: Sequence[Path],
    out: Path | None = None,
    *,
    baseline: str | None = None,
    is_forced: bool = False,
) -> dict[str, Any]:
    """Write the three files and return what the JSON one holds, with their paths.

    Into a run's own folder it writes again and again; elsewhere never over a report that is there
    unless `is_forced`. Raises SwebenchError for that, and for runs on different instances.
    """
    comparison = replace(compare(folders, baseline), figures=(FIGURE_FILE,))
    folder = folders[0] if out is None else out
    if folder not in folders and (folder / JSON_FILE).exists() and not is_forced:
        raise SwebenchError(f"{folder / JSON_FILE} exists: choose another --out, or --force")
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "baseline": comparison.baseline.name,
        "conditions": comparison.conditions(),
        "runs": [_entry(comparison, run) for run in comparison.runs],
        "files": {
            "markdown": str(folder / MARKDOWN_FILE),
            "json": str(folder / JSON_FILE),
            "figure": str(draw(comparison, folder / FIGURE_FILE)),
        },
    }
    _write(folder / MARKDOWN_FILE, markdown(comparison))
    _write(folder / JSON_FILE, json.dumps(document, indent=1) + "\n")
    return document


def _entry(comparison: Comparison, run: ReportedRun) -> dict[str, Any]:
    apart = comparison.resolved_apart(run)
    return {
        "name": run.name,
        "policy": run.run.policy,
        "run_id": run.run.run_id,
        "run": str(run.run.folder),
        "mode": run.mode,
        "harness_version": run.harness_version,
        **run.summary,
        "ratios": {
            name: comparison.ratio(run, name) for name in run.summary if name.startswith("jct_")
        },
        "resolved_only_here": None if apart is None else apart[0],
        "resolved_only_in_baseline": None if apart is None else apart[1],
        "results": {name: asdict(verdict) for name, verdict in (run.verdicts or {}).items()},
    }


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
