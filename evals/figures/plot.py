"""`agentkv plot`: figures from the rows of bench, compare and simulate.

ROWS are folders with runs anywhere below them. Runs that differ in GPU, model, workload, tools or
memory get figures of their own. Each figure carries its conditions: workload, pool, model, number
of runs and jobs, seeds, commit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .kinds import KINDS, Drawing, drawings
from .runs import grouped, load_runs
from .style import FigureError, in_order

DONE, FAILED, BAD_USAGE = 0, 1, 2
DEFAULT_BASELINE = "fcfs"


def main(argv: Sequence[str] | None = None) -> int:
    """0: drawn; 1: a figure could not be written; 2: rows, kinds or folder that cannot be used."""
    options = _parser().parse_args(argv)
    out = Path(options.out)
    try:
        runs, left_out = load_runs(options.rows)
        _check_baseline(options.baseline, [run.policy for run in runs])
        planned = list(drawings(grouped(runs), options.kind or list(KINDS), options.baseline))
        _check_free([out / drawing.file for drawing in planned], force=options.force)
    except FigureError as error:
        print(f"agentkv plot: {error}", file=sys.stderr)
        return BAD_USAGE
    for line in left_out:
        print(line, file=sys.stderr)
    written: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    try:
        for row in _draw_all(planned, out):
            (skipped if "why" in row else written).append(row)
            _say(row)
    except OSError as error:
        print(f"agentkv plot: cannot write into {out}: {error}", file=sys.stderr)
        return FAILED
    document = {"runs": len(runs), "left_out": left_out, "figures": written, "skipped": skipped}
    print(json.dumps(document))
    if not written:
        print("agentkv plot: no figure could be drawn from these rows", file=sys.stderr)
    return DONE if written else BAD_USAGE


def _draw_all(planned: Sequence[Drawing], out: Path) -> Iterator[dict[str, Any]]:
    """Each figure as it is drawn; one that the rows are not enough for, with the reason."""
    for drawing in planned:
        row = {"kind": drawing.kind, "file": str(out / drawing.file)}
        try:
            drawing.draw(out / drawing.file)
        except FigureError as error:
            row["why"] = str(error)
        yield row


def _say(row: dict[str, Any]) -> None:
    line = f"not drawn: {row['why']}" if "why" in row else f"written to {row['file']}"
    print(line, file=sys.stderr, flush=True)


def _check_baseline(baseline: str, policies: Sequence[str]) -> None:
    """One that was named must be there; without the usual one figures lack their ratios."""
    if baseline not in (DEFAULT_BASELINE, *policies):
        seen = ", ".join(in_order(policies))
        raise FigureError(f"--baseline: got {baseline!r}, the rows have {seen}")


def _check_free(files: Sequence[Path], *, force: bool) -> None:
    present = [file for file in files if file.exists()]
    if present and not force:
        raise FigureError(f"{present[0]} exists: choose another --out, or --force")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv plot", description=__doc__)
    add: Any = parser.add_argument
    add("rows", nargs="+", metavar="ROWS", help="an --out of bench, compare or simulate")
    add("--out", required=True, metavar="DIR", help="folder for the figures")
    shown = "; ".join(f"{name}: {kind.what}" for name, kind in KINDS.items())
    add(
        "--kind", action="append", choices=tuple(KINDS), help=f"only this one (repeatable). {shown}"
    )
    add(
        "--baseline",
        default=DEFAULT_BASELINE,
        metavar="POLICY",
        help="compared with (default %(default)s)",
    )
    add("--force", action="store_true", help="overwrite figures that are there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
