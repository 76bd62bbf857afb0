"""`python -m studies.tournament`: every policy against every other, on the same jobs.

Rows are written as units end; the page's tables and the figure are made from the rows alone.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentkv.evals.options import whole_number
from agentkv.evals.rows import write_whole

from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result
from .findings import Findings
from .page import draw, fill, tables
from .regimes import PARTS, SETTINGS, simulate, units

HERE = Path(__file__).parent
ROWS_FILE, PACKED_FILE, TABLES_FILE = "rows.jsonl", "rows.jsonl.gz", "tables.md"
PROGRAM = "python -m studies.tournament"
_NEEDED = ("workload", "pool", "has_tier", "seed", "policy", "error", "commit")


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    out = Path(options.out)
    if not options.tables:
        if options.force:
            (out / PACKED_FILE).unlink(missing_ok=True)
        unpack(out)
        asked = list(units(options.parts, options.seeds, options.workloads))
        asked = [unit for unit in asked if options.policy is None or unit.name in options.policy]
        run = play_missing(asked, simulate, out / ROWS_FILE, options, program=PROGRAM)
    rows = read_units(out)
    found = Findings(rows)
    made = tables(found)
    write_whole(out / TABLES_FILE, "\n\n".join(made.values()) + "\n")
    for page in map(Path, options.page):
        write_whole(page, fill(page.read_text(encoding="utf-8"), made))
    if found.played:
        draw(found, Path(options.figure or out / "tournament.png"))
    if options.pack:
        pack(rows, out / PACKED_FILE)
    return print_result(rows, run, commits=found.commits)


def read_units(out: Path) -> list[Row]:
    """The last row of each unit; the committed, packed rows where there are no others."""
    unpack(out)
    return last_rows(out / ROWS_FILE, _NEEDED)


def unpack(out: Path) -> None:
    """Write the rows that are committed, unless there are others."""
    packed = out / PACKED_FILE
    if packed.is_file() and not (out / ROWS_FILE).exists():
        (out / ROWS_FILE).write_bytes(gzip.decompress(packed.read_bytes()))


def pack(rows: Sequence[Row], path: Path) -> None:
    """Write the rows that are committed, one a unit."""
    kept = [{k: v for k, v in row.items() if k not in ("wall_s", "traceback")} for row in rows]
    text = "".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in kept)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Play the same jobs under every policy: workloads x pools x tiers x seeds.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all units "
        "done, 1 some failed or it ended early, 2 bad usage.",
    )
    add = parser.add_argument_group("what is played").add_argument
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="in this order (default: all)")
    names = tuple(SETTINGS)
    add("--workloads", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    add("--seeds", type=whole_number(0), nargs="+", default=(0, 1, 2), metavar="N")
    add("--policy", action="append", metavar="NAME", help="as in the tables (default: all)")
    add = parser.add_argument_group("files").add_argument
    add("--out", default=str(HERE), metavar="DIR", help="rows and tables (default: the study's)")
    add("--tables", action="store_true", help="play nothing: tables and figure from the rows alone")
    add("--page", nargs="+", default=(), metavar="FILE", help="pages whose tables are replaced")
    add("--figure", metavar="FILE", help="default: tournament.png in --out")
    add("--pack", action="store_true", help=f"write {PACKED_FILE}, which is committed")
    add_run_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
