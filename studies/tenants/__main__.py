"""`python -m studies.tenants`: what a tenant of a tenth of the load gets next to a greedy one.

A unit is one policy with one seed on one pool: the jobs of both tenants together, and then those of
the light one alone on half the machine, which has half the blocks and takes twice as long for each
step. Rows are written as units end; the tables are made from the rows alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentkv.evals.options import whole_number
from agentkv.evals.rows import write_whole
from agentkv.evals.summary import Spread
from agentkv.evals.tables import markdown_table

from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result
from .regimes import ABLATIONS, HEAVY, LIGHT, POLICIES, SETTINGS, simulate, units

HERE = Path(__file__).parent
ROWS_FILE, TABLES_FILE = "rows.jsonl", "tables.md"
PROGRAM = "python -m studies.tenants"
_NEEDED = ("workload", "blocks", "policy", "seed", "error")


def ratio(row: Row) -> float:
    """Mean duration of the light tenant's jobs, over that alone on half the machine."""
    return float(row["clients"][LIGHT]["mean_s"] / row["alone_on_half"]["mean_s"])


def table(rows: Sequence[Row]) -> str:
    """A line for each policy on each pool, over all seeds."""
    titles = ["workload", "blocks", "policy", "seeds", "light, s", "alone on half, s"]
    titles += ["ratio: mean", "from, to", "heavy, s", "all, s"]
    lines = []
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["workload"], row["blocks"], row["policy"]), []).append(row)
    order = [*POLICIES, *ABLATIONS]
    places = sorted(groups, key=lambda place: (place[0], -place[1], order.index(place[2])))
    for workload, blocks, policy in places:
        same = groups[workload, blocks, policy]
        means = [
            Spread.of([row["clients"][LIGHT]["mean_s"] for row in same]),
            Spread.of([row["alone_on_half"]["mean_s"] for row in same]),
            Spread.of([ratio(row) for row in same]),
            Spread.of([row["clients"][HEAVY]["mean_s"] for row in same]),
            Spread.of([row["mean_s"] for row in same]),
        ]
        light, half, ratios, heavy, both = (spread for spread in means if spread is not None)
        cells = [f"{light.mean:.1f}", f"{half.mean:.1f}", f"{ratios.mean:.2f}"]
        cells += [f"{ratios.least:.2f}, {ratios.most:.2f}", f"{heavy.mean:.1f}", f"{both.mean:.1f}"]
        lines.append([workload, f"{blocks}", policy, f"{len(same)}", *cells])
    return markdown_table(titles, lines, left=3)


def main(argv: Sequence[str] | None = None) -> int:
    """0: all units done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    out = Path(options.out)
    if not options.tables:
        asked = units(options.workloads, options.seeds)
        run = play_missing(asked, simulate, out / ROWS_FILE, options, program=PROGRAM)
    rows = last_rows(out / ROWS_FILE, _NEEDED)
    played = [row for row in rows if row["error"] is None]
    write_whole(out / TABLES_FILE, table(played) + "\n")
    ours = [ratio(row) for row in played if row["policy"] == "agentkv"]
    return print_result(rows, run, worst_ratio=max(ours, default=None))


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    add = parser.add_argument
    names = tuple(SETTINGS)
    add("--workloads", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    add("--seeds", type=whole_number(0), nargs="+", default=(0, 1, 2), metavar="N")
    add("--out", default=str(HERE), metavar="DIR", help="rows and table (default: the study's)")
    add("--tables", action="store_true", help="play nothing: the table from the rows alone")
    add_run_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
