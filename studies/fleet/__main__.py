"""`python -m studies.fleet`: routers before one to sixteen engines, on the same jobs.

Rows are written as units end; the page's tables and the figure are made from the rows alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentkv.evals.options import whole_number
from agentkv.evals.rows import write_whole

from ..tournament.page import fill
from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result
from .page import Findings, draw, tables
from .regimes import PARTS, SIZES, simulate, units

HERE = Path(__file__).parent
ROWS_FILE = "rows.jsonl"
PROGRAM = "python -m studies.fleet"
_NEEDED = ("engines", "load", "has_failure", "seed", "policy", "router", "error")


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    path = Path(options.out) / ROWS_FILE
    if not options.tables:
        asked = units(options.parts, options.sizes, options.seeds)
        run = play_missing(asked, simulate, path, options, program=PROGRAM)
    rows = last_rows(path, _NEEDED)
    found = Findings(rows)
    made = tables(found)
    for page in map(Path, options.page):
        write_whole(page, fill(page.read_text(encoding="utf-8"), made))
    if options.figure:
        draw(found, Path(options.figure))
    return print_result(rows, run, beaten=len(found.beaten()))


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
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
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
