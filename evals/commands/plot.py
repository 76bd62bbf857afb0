"""`agentkv plot`: figures from the rows of bench, compare and simulate.

ROWS are folders with runs anywhere below them. Runs that differ in GPU, model, workload, tools or
memory get figures of their own. Each figure carries its conditions: workload, pool, model, number
of runs and jobs, seeds, commit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.command_line import BAD_USAGE, DONE, FAILED, command_parser, print_document
from agentkv.errors import InputError

from ..figures.drawing import (
    DURATIONS,
    FIRST_TOKENS,
    HITS,
    SAVED,
    draw_side_by_side,
    draw_sweep,
    in_order,
)
from ..figures.runs import Group, grouped, load_runs
from ..options import add_kept
from ..rows import require_free

DEFAULT_BASELINE = "fcfs"
SWEPT = {
    "sweep": "mean and p99 duration against load",
    "combined": "the same for all GPUs at once",
    "speedup": "mean duration saved against load",
    "ttft": "time to first token against load",
    "hits": "hit rate against load",
}
"""Kinds of figures that need a load that varies, and what they show."""
KINDS = SWEPT | {"policies": "policies side by side under the heaviest load"}
Drawing = tuple[str, str, Callable[[Path], Path]]
"""Kind, name of the file, and what draws it; InputError where the runs are not enough for it."""


def main(argv: Sequence[str]) -> int:
    """0: drawn; 1: a figure could not be written; 2: none could be drawn.

    Raises InputError for rows, kinds or a folder that cannot be used.
    """
    options = _parser().parse_args(argv)
    out = Path(options.out)
    runs, left_out = load_runs(options.rows)
    policies = [run.policy for run in runs]
    # without the usual baseline figures lack their ratios; one that was named must be there
    if options.baseline not in (DEFAULT_BASELINE, *policies):
        seen = ", ".join(in_order(policies))
        raise InputError(f"--baseline: got {options.baseline!r}, the rows have {seen}")
    planned = list(drawings(grouped(runs), options.kind or list(KINDS), options.baseline))
    for _, file, _ in planned:
        require_free(out / file, force=options.force)
    for line in left_out:
        print(line, file=sys.stderr)
    written: list[dict[str, str]] = []
    skipped: list[dict[str, str]] = []
    try:
        for kind, file, draw in planned:
            row = {"kind": kind, "file": str(out / file)}
            try:
                draw(out / file)
            except InputError as error:
                skipped.append(row | {"why": str(error)})
                print(f"not drawn: {error}", file=sys.stderr, flush=True)
            else:
                written.append(row)
                print(f"written to {out / file}", file=sys.stderr, flush=True)
    except OSError as error:
        print(f"agentkv plot: cannot write into {out}: {error}", file=sys.stderr)
        return FAILED
    document = {"runs": len(runs), "left_out": left_out, "figures": written, "skipped": skipped}
    print_document(document, is_asked_for=False)
    if not written:
        print("agentkv plot: no figure could be drawn from these rows", file=sys.stderr)
    return DONE if written else BAD_USAGE


def drawings(groups: Sequence[Group], kinds: Sequence[str], baseline: str) -> Iterator[Drawing]:
    """The figures of these kinds; InputError if they all need a load that varies and none does."""
    swept = [group for group in groups if len(group.loads) > 1]
    if not swept and all(kind in SWEPT for kind in kinds):
        raise InputError(f"{', '.join(kinds)}: needs runs under more than one load (--jps)")
    planned: list[Drawing] = []
    for group in groups:
        slug, load = group.slug, _load(group)
        if group in swept:
            planned += [
                ("sweep", f"{load}_sweep_{slug}.png", partial(draw_sweep, [group], DURATIONS)),
                ("ttft", f"ttft_{slug}.png", partial(draw_sweep, [group], FIRST_TOKENS)),
                ("hits", f"hit_rate_{slug}.png", partial(draw_sweep, [group], HITS)),
            ]
        bars = partial(draw_side_by_side, group.heaviest(), baseline)
        planned.append(("policies", f"policies_{slug}.png", bars))
    for load in dict.fromkeys(map(_load, swept)):
        same = [group for group in swept if _load(group) == load]
        combined = partial(draw_sweep, same, DURATIONS)
        planned += [
            ("combined", f"{load}_sweep_combined.png", combined),
            (
                "speedup",
                f"{load}_sweep_speedup.png",
                partial(draw_sweep, same, SAVED, baseline=baseline),
            ),
        ]
    return (drawing for drawing in planned if drawing[0] in kinds)


def _load(group: Group) -> str:
    return group.setting.load_kind or "load"


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("plot", __doc__)
    add: Any = parser.add_argument
    add("rows", nargs="+", metavar="ROWS", help="an --out of bench, compare or simulate")
    shown = "; ".join(f"{name}: {what}" for name, what in KINDS.items())
    kind_help = f"only this one (repeatable). {shown}"
    add("--kind", action="append", choices=tuple(KINDS), help=kind_help)
    baseline_help = "compared with (default %(default)s)"
    add("--baseline", default=DEFAULT_BASELINE, metavar="POLICY", help=baseline_help)
    add_kept(parser, "folder for the figures", is_required=True)
    return parser
