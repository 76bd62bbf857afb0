"""`python -m studies.fleet`: routers before one to sixteen engines, on the same jobs.

Rows are written as units end; the page's tables and the figure are made from the rows alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentkv.errors import AgentKVError, InputError
from agentkv.evals.options import BAD_USAGE, DONE, FAILED, whole_number
from agentkv.evals.rows import provenance, write_whole

from ..tournament.page import fill
from ..units import Row, add_run_options, last_rows, play_units, write_rows
from .page import Findings, draw, tables
from .regimes import PARTS, SIZES, Unit, simulate, units

HERE = Path(__file__).parent
ROWS_FILE = "rows.jsonl"
PROGRAM = "python -m studies.fleet"
_NEEDED = ("unit", "engines", "load", "has_failure", "seed", "policy", "router", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    options = _read_options(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # standard output is JSON
    try:
        return _run(options, Path(options.out))
    except (AgentKVError, OSError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return BAD_USAGE


def _run(options: argparse.Namespace, out: Path) -> int:
    run: Row = {}
    if not options.tables:
        todo = _units_to_play(options, out)
        played = play_units(todo, simulate, partial(make_row, provenance()["commit"]), options)
        run = write_rows(out / ROWS_FILE, played, len(todo), program=PROGRAM)
    rows = last_rows(out / ROWS_FILE, _NEEDED)
    found = Findings(rows)
    made = tables(found)
    for page in map(Path, options.page):
        write_whole(page, fill(page.read_text(encoding="utf-8"), made))
    if options.figure:
        draw(found, Path(options.figure))
    failed = [row for row in rows if row["error"] is not None]
    document = {"units": len(rows), "beaten": len(found.beaten()), **run}
    print(json.dumps({**document, "failed_units": len(failed)}), flush=True)
    return FAILED if failed or run.get("ended_early") else DONE


def make_row(commit: str | None, unit: Unit, found: Row) -> Row:
    """What was found, with all that is known of its origin."""
    return {"unit": unit.key, **unit.facts(), **found, "commit": commit}


def _units_to_play(options: argparse.Namespace, out: Path) -> list[Unit]:
    """The units that have no row yet; with --force the old rows are deleted."""
    asked = list(units(options.parts, options.sizes, options.seeds))
    if options.force:
        (out / ROWS_FILE).unlink(missing_ok=True)
    elif (out / ROWS_FILE).exists():
        if not options.resume:
            raise InputError(f"{out} has rows: --resume it, --force, or another --out")
        rows = last_rows(out / ROWS_FILE, _NEEDED)
        done = {row["unit"] for row in rows if row["error"] is None}
        return [unit for unit in asked if unit.key not in done]
    return asked


def _read_options(argv: Sequence[str]) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description=__doc__,
        epilog="Exit status: 0 all units done, 1 some failed or it ended early, 2 bad usage.",
    )
    add = parser.add_argument_group("what is played").add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    add("--sizes", nargs="+", type=int, choices=SIZES, default=SIZES, help="engines (default: all)")
    add("--seeds", type=whole_number(0), nargs="+", default=(0, 1), metavar="N")
    add = parser.add_argument_group("files").add_argument
    add("--out", default=str(HERE), metavar="DIR", help="rows (default: the study's)")
    add("--tables", action="store_true", help="play nothing: use the rows that exist")
    add("--page", nargs="+", default=(), metavar="FILE", help="pages whose tables are replaced")
    add("--figure", metavar="FILE", help="draw the figure")
    add_run_options(parser)
    options = parser.parse_args(argv)
    if options.resume and options.force:
        parser.error("--resume and --force: give the one or the other")
    return options


if __name__ == "__main__":
    sys.exit(main())
