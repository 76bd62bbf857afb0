"""`agentkv simulate study`: the same jobs under each policy over a grid of regimes.

A unit of work is one policy in one regime (tools x pool x load) with one seed. Rows are written as
units end; tables and figures are made from the rows alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.errors import AgentKVError

from .findings import findings
from .options import make_plan, output_of, read_options
from .plan import Output, StudyPlan
from .rows import ROWS_FILE, STUDY_FILE, TABLES_FILE, RowFile, StudyError, check_same, read_rows
from .study_progress import study_progress
from .tables import tables
from .units import Unit, unit_key
from .workers import play_all

DONE, FAILED, BAD_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    options = read_options(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    try:
        if options.tables is not None:
            out = Path(options.tables)
            if not read_rows(out):
                raise StudyError(f"{out / ROWS_FILE}: no row of a unit in it")
            return _report(out, {})
        with tempfile.TemporaryDirectory(prefix="agentkv-study-") as folder:
            return _run(options, Path(folder))
    except (AgentKVError, OSError) as error:
        print(f"agentkv simulate study: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(options: argparse.Namespace, folder: Path) -> int:
    if importlib.util.find_spec("vllm") is None:
        raise StudyError(
            "the package 'vllm' is missing: units run vLLM's own scheduler; "
            "run `pip install 'agentkv-serving[vllm,bench]'`"
        )
    output = output_of(options)
    plan = make_plan(options, folder)
    todo = _units_to_play(plan, output)
    started_s = time.monotonic()
    num_jobs, reason = _play(plan, output, todo)
    wall_s = time.monotonic() - started_s
    if reason is not None:
        print(f"agentkv simulate study: ended early: {reason}", file=sys.stderr)
    run = {
        "ended_early": reason,
        "units_asked": len(todo),
        "wall_s": round(wall_s, 3),
        "jobs_per_s": num_jobs / wall_s,
    }
    return _report(output.out, run)


def _units_to_play(plan: StudyPlan, output: Output) -> list[Unit]:
    """Those that have no row yet; with --force what was there goes."""
    units = plan.units()
    if output.has_force:
        for name in (ROWS_FILE, STUDY_FILE, TABLES_FILE):
            (output.out / name).unlink(missing_ok=True)
    if not (output.out / ROWS_FILE).exists():
        return units
    if not output.has_resume:
        raise StudyError(f"{output.out / ROWS_FILE} exists: --resume it, --force, or another --out")
    rows = read_rows(output.out)
    check_same(rows, plan.config, output.out)
    done = {row["unit"] for row in rows if row["error"] is None}
    return [
        unit
        for unit in units
        if unit.policy in output.again or unit_key(unit, plan.config) not in done
    ]


def _play(plan: StudyPlan, output: Output, units: Sequence[Unit]) -> tuple[int, str | None]:
    """Play units, keep their rows; how many jobs that was, and why it ended early, if it did."""
    num_jobs = 0
    num_workers = min(output.num_workers, len(units)) or 1
    played = play_all(plan, units, num_workers=num_workers, unit_limit_s=output.unit_limit_s)
    try:
        with RowFile(output.out) as file, study_progress(len(units)) as show:
            for unit, row in played:
                file.add(row)
                num_jobs += row.get("jobs", 0)
                show(unit, row)
    except KeyboardInterrupt:
        return num_jobs, "interrupted"
    except OSError as error:
        return num_jobs, str(error)
    finally:
        played.close()
    return num_jobs, None


def _report(out: Path, run: dict[str, Any]) -> int:
    """Tables and figures from the rows, and the document, without its regimes, on the output."""
    found = {**findings(read_rows(out)), **run}
    found["figures"] = _draw(found, out)
    (out / STUDY_FILE).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (out / TABLES_FILE).write_text(tables(found), encoding="utf-8")
    shown = {name: value for name, value in found.items() if name != "regimes"}
    print(json.dumps(shown), flush=True)
    return FAILED if found["failed_units"] or run.get("ended_early") else DONE


def _draw(found: dict[str, Any], out: Path) -> list[str]:
    """The names of the figures."""
    try:
        from .study_figure import draw_study
    except ModuleNotFoundError as error:
        print(f"agentkv simulate study: no figures without {error.name!r}", file=sys.stderr)
        return []
    return [path.name for path in draw_study(found, out)]


if __name__ == "__main__":
    sys.exit(main())
