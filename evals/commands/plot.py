"""`agentkv plot`: figures from the rows of bench and simulate.

    agentkv plot runs/ab --out figures                  # all that the rows are enough for
    agentkv plot runs/jps-* --kind sweep --kind saved --out figures
    agentkv plot rows.jsonl --kind policies --format svg --out docs/results

ROWS are folders with runs anywhere below them, or .jsonl files of summaries, one a line. Runs that
differ in GPU, model, workload, tools or memory get figures of their own. Each figure carries its
conditions: workload, pool, model, number of runs and jobs, seeds, commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentkv.command_line import BAD_USAGE, DONE, FAILED, add_json, command_parser
from agentkv.errors import InputError

from ..figures import KINDS, in_order
from ..options import add_kept
from ..rows import require_free
from ..run_table import grouped, load_runs

DEFAULT_BASELINE = "fcfs"


def main(argv: Sequence[str]) -> int:
    """0: drawn; 1: a figure could not be written; 2: none could be drawn.

    Raises InputError for rows, kinds or a folder that cannot be used.
    """
    options = _parser().parse_args(argv)
    out = Path(options.out)
    runs, left_out = load_runs(options.rows)
    policies = in_order(runs["policy"])
    # without the usual baseline figures lack their ratios; one that was named must be there
    if options.baseline not in (DEFAULT_BASELINE, *policies):
        seen = ", ".join(policies)
        raise InputError(f"--baseline: got {options.baseline!r}, the rows have {seen}")
    planned = [
        (kind, same, out / f"{'_'.join(filter(None, [kind, slug]))}.{options.format}")
        for slug, same in grouped(runs).items()
        for kind in options.kind or KINDS
    ]
    for _, _, path in planned:
        require_free(path, force=options.force)
    _say(left_out)
    written: list[str] = []
    skipped: dict[str, str] = {}
    try:
        for kind, same, path in planned:
            try:
                KINDS[kind][0](same, options.baseline, path)
            except InputError as error:
                skipped[str(path)] = str(error)
            else:
                written.append(str(path))
                _say([f"written to {path}"])
    except OSError as error:
        _say([f"agentkv plot: cannot write into {out}: {error}"])
        return FAILED
    if options.kind or not written:
        _say([f"not drawn: {path}: {why}" for path, why in skipped.items()])
    if options.json:
        document = {"runs": len(runs), "left_out": left_out, "figures": written}
        print(json.dumps(document | {"skipped": skipped}))
    return DONE if written else BAD_USAGE


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _parser() -> Any:
    parser = command_parser("plot", __doc__)
    add: Any = parser.add_argument
    add("rows", nargs="+", metavar="ROWS", help="an --out of bench or simulate, or a .jsonl file")
    shown = "; ".join(f"{name}: {what}" for name, (_, what) in KINDS.items())
    add("--kind", action="append", choices=KINDS, help=f"only this one (repeatable). {shown}")
    baseline_help = "compared with (default %(default)s)"
    add("--baseline", default=DEFAULT_BASELINE, metavar="POLICY", help=baseline_help)
    add("--format", choices=("png", "svg"), default="png", help="default %(default)s")
    add_kept(parser, "folder for the figures", is_required=True)
    add_json(parser)
    return parser
