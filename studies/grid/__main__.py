"""`python -m studies.grid STUDY`: plays what a study's `study.toml` asks for, and has no row yet.

Rows are written to `STUDY/rows.jsonl` as units end, tables are made from the rows alone and filled
into `STUDY/README.md`. --policy, --seeds and --regimes play something else, with --out elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentkv.command_line import BAD_USAGE, DONE, FAILED, seconds, whole_number
from agentkv.errors import AgentKVError, InputError
from agentkv.evals.rows import write_whole

from . import report
from .plan import Study, Unit, read_study
from .play import Row, play_missing, read_units
from .policies import parse_grid_policy

STUDIES = Path(__file__).parents[1]
ROWS = "rows.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except (AgentKVError, OSError) as error:
        print(f"studies.grid: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(options: argparse.Namespace) -> int:
    folder = STUDIES / options.study
    study = changed(read_study(folder / "study.toml"), options)
    out = options.out or folder
    run: Row = {}
    if not options.tables:
        units = [unit for unit in study.units() if _is_asked(unit, options)]
        if not units:
            raise InputError(f"{options.study}: no regime of that name")
        for unit in units:
            parse_grid_policy(unit.policy)
        limit_s = options.unit_limit_s
        run = play_missing(units, out / ROWS, workers=options.workers, limit_s=limit_s)
    rows = read_units(out / ROWS)
    if not rows:
        raise InputError(f"{out / ROWS}: no row of a unit in it")
    found = report.tables(study, report.index(rows))
    page = out / "README.md"
    if page.is_file():
        write_whole(page, report.filled(page.read_text(encoding="utf-8"), found))
    print(found)
    failed = [row["unit"] for row in rows if row["error"] is not None]
    print(json.dumps({"study": study.title, "rows": len(rows), **run, "failed": failed}))
    return FAILED if failed or run.get("ended_early") else DONE


def changed(study: Study, options: argparse.Namespace) -> Study:
    """The study with the policies and seeds of the flags."""
    groups = tuple(
        replace(
            group,
            policies=tuple(options.policy or group.policies),
            seeds=tuple(options.seeds or group.seeds),
        )
        for group in study.groups
    )
    return replace(study, groups=groups)


def _is_asked(unit: Unit, options: argparse.Namespace) -> bool:
    return options.regimes is None or re.search(options.regimes, unit.regime.name) is not None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.grid", description=__doc__)
    add = parser.add_argument
    names = ", ".join(sorted(path.parent.name for path in STUDIES.glob("*/study.toml")))
    add("study", help=f"a folder with a study.toml: {names}")
    add("--policy", action="append", metavar="NAME", help="these policies instead; repeatable")
    add("--seeds", type=whole_number(0), nargs="+", metavar="N", help="these seeds instead")
    add("--regimes", metavar="REGEX", help="only regimes whose name has this in it")
    add("--out", type=Path, metavar="DIR", help="for rows and tables (default: the study)")
    add("--tables", action="store_true", help="play nothing: tables from the rows that are there")
    add("--workers", type=whole_number(1), default=1, metavar="N", help="default %(default)s")
    add("--unit-limit-s", type=seconds, default=1800.0, metavar="S", help="default %(default)g")
    return parser


if __name__ == "__main__":
    sys.exit(main())
