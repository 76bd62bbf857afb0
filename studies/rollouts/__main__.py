"""`python -m studies.rollouts`: when does the last trajectory of a training step end?

A simulated engine of SkyRL's recipe for coding agents plays the same trajectories under stock, caps
on concurrency, ThunderAgent's rule, `agentkv`, and `agentkv` with the goal "batch". Rows are
written as runs end; the tables are made from the rows alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from agentkv.evals.options import whole_number
from agentkv.evals.rows import write_whole
from agentkv.evals.tables import markdown_table

from ..units import Row, add_run_options, exit_status, last_rows, play_missing, print_result
from .regimes import POLICIES, REGIMES, STOCK, Regime, Unit, simulate, units

HERE = Path(__file__).parent
ROWS_FILE, TABLES_FILE = "rows.jsonl", "tables.md"
PROGRAM = "python -m studies.rollouts"
_NEEDED = ("regime", "seed", "policy", "error")


def tables(rows: Sequence[Row]) -> str:
    """A table a regime, in ratios to stock's of the same seed: mean, least and most."""
    parts = []
    for regime in REGIMES:
        of = {(row["policy"], row["seed"]): row for row in rows if row["regime"] == regime}
        lines = []
        for policy in dict.fromkeys(Unit(regime, 0, policy, 1).name for policy in POLICIES):
            pairs = [
                (row, of[STOCK, seed])
                for (name, seed), row in of.items()
                if name == policy and (STOCK, seed) in of
            ]
            if pairs:
                lines.append([f"`{policy}`", str(len(pairs)), *_cells(pairs)])
        if lines:
            header = ["policy", "seeds", "step s", "step / stock", "last trajectory", "mean"]
            parts.append(
                f"**{regime}** ({_describe(REGIMES[regime])})\n\n"
                + markdown_table([*header, "tokens/s", "hits", "recomputed"], lines)
            )
    return "\n\n".join(parts) + "\n"


def _cells(pairs: Sequence[tuple[Row, Row]]) -> Iterator[str]:
    yield f"{mean(own['step_s'] for own, _ in pairs):.0f}"
    for key in ("step_s", "last_s", "mean_s", "tokens_per_s"):
        ratios = [own[key] / stock[key] for own, stock in pairs]
        yield f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    for key in ("hit_rate", "recomputed_share"):
        yield f"{mean(own[key] for own, _ in pairs):.0%}"


def _describe(regime: Regime) -> str:
    kind = "at once, an update after each half" if regime.num_jobs else "a step"
    return f"{regime.num_at_once} trajectories {kind}, memory share {regime.memory_share}"


def main(argv: Sequence[str] | None = None) -> int:
    """0: all runs done; 1: some failed, or it ended early; 2: nothing could be done."""
    return exit_status(PROGRAM, partial(_run, _read_options(argv)))


def _run(options: argparse.Namespace) -> int:
    run: Row = {}
    out = Path(options.out)
    if not options.tables:
        asked = units(options.regimes, options.seeds, options.tokens_each, options.policy)
        run = play_missing(asked, simulate, out / ROWS_FILE, options, program=PROGRAM)
    rows = last_rows(out / ROWS_FILE, _NEEDED)
    good = [row for row in rows if row["error"] is None]
    write_whole(out / TABLES_FILE, tables(good))
    return print_result(rows, run)


def _read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags; argparse itself exits with status 2 for invalid ones."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Play training steps under stock, caps, ThunderAgent's rule and agentkv.",
        epilog="The last line on standard output is one JSON document. Exit status: 0 all runs "
        "done, 1 some failed or it ended early, 2 bad usage.",
    )
    add = parser.add_argument_group("what is played").add_argument
    names = tuple(REGIMES)
    add("--regimes", nargs="+", choices=names, default=names, metavar="NAME", help="default: all")
    add("--seeds", type=whole_number(0), nargs="+", default=(1, 2, 3), metavar="N")
    add("--policy", action="append", metavar="NAME", help="as in the tables (default: all)")
    each = "tokens that a simulated one stands for (default %(default)s)"
    add("--tokens-each", type=whole_number(1), default=16, metavar="N", help=each)
    add = parser.add_argument_group("files").add_argument
    add("--out", default=str(HERE), metavar="DIR", help="rows and tables (default: the study's)")
    add("--tables", action="store_true", help="play nothing: tables from the rows alone")
    add_run_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
