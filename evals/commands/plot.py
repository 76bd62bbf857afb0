"""`agentkv plot`: figures from the rows of bench, compare and simulate.

ROWS are folders with runs anywhere below them. Runs that differ in GPU, model, workload, tools or
memory get figures of their own. Each figure carries its conditions: workload, pool, model, number
of runs and jobs, seeds, commit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..figures.against_load import (
    DURATIONS,
    FIRST_TOKENS,
    HITS,
    draw_savings,
    draw_side_by_side,
    draw_sweep,
)
from ..figures.by_job import draw_by_turn, draw_cumulative
from ..figures.runs import Group, grouped, load_runs
from ..figures.style import FigureError, in_order
from ..figures.timeline import draw_run_timeline

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


# MERGED: Which figures there are, and which of them a set of runs asks for.


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of figure; `is_swept`: it needs a load that varies."""

    what: str
    is_swept: bool = False


KINDS = {
    "sweep": Kind("mean and p99 duration against load", is_swept=True),
    "combined": Kind("the same for all GPUs at once", is_swept=True),
    "speedup": Kind("mean duration saved against load", is_swept=True),
    "ttft": Kind("time to first token against load", is_swept=True),
    "hits": Kind("hit rate against load", is_swept=True),
    "policies": Kind("policies side by side under the heaviest load"),
    "cdf": Kind("distribution of job durations"),
    "turns": Kind("latency turn by turn"),
    "timeline": Kind("the same jobs under each policy over time"),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    """One figure to be drawn; `draw` raises FigureError where the runs are not enough for it."""

    kind: str
    file: str
    draw: Callable[[Path], Path]


def drawings(groups: Sequence[Group], kinds: Sequence[str], baseline: str) -> Iterator[Drawing]:
    """The figures of these kinds; FigureError if a kind asked for alone makes no sense here."""
    swept = [group for group in groups if len(group.loads) > 1]
    if not swept and all(KINDS[kind].is_swept for kind in kinds):
        raise FigureError(f"{', '.join(kinds)}: needs runs under more than one load (--jps)")
    for group in groups:
        yield from _of_one(group, kinds, baseline, is_swept=group in swept)
    for prefix, same in _by_prefix(swept).items():
        if "combined" in kinds:
            yield Drawing(
                "combined",
                f"{prefix}_sweep_combined.png",
                partial(draw_sweep, same, DURATIONS),
            )
        if "speedup" in kinds:
            yield Drawing(
                "speedup",
                f"{prefix}_sweep_speedup.png",
                partial(draw_savings, same, baseline),
            )


def _of_one(
    group: Group, kinds: Sequence[str], baseline: str, *, is_swept: bool
) -> Iterator[Drawing]:
    prefix, slug = _prefix(group), group.slug
    of_load = {
        "sweep": (f"{prefix}_sweep_{slug}.png", partial(draw_sweep, [group], DURATIONS)),
        "ttft": (f"ttft_{slug}.png", partial(draw_sweep, [group], FIRST_TOKENS)),
        "hits": (f"hit_rate_{slug}.png", partial(draw_sweep, [group], HITS)),
    }
    heaviest = group.at(group.loads[-1]) if group.loads else group
    of_jobs = {
        "policies": (f"policies_{slug}.png", partial(draw_side_by_side, heaviest, baseline)),
        "cdf": (f"duration_cdf_{slug}.png", partial(draw_cumulative, group)),
        "turns": (f"latency_by_turn_{slug}.png", partial(draw_by_turn, group)),
        "timeline": (f"timeline_{slug}.png", partial(draw_run_timeline, group, baseline=baseline)),
    }
    figures = {**of_load, **of_jobs} if is_swept else of_jobs
    for kind, (file, draw_one) in figures.items():
        if kind in kinds:
            yield Drawing(kind, file, draw_one)


def _prefix(group: Group) -> str:
    return group.setting.load_kind or "load"


def _by_prefix(groups: Sequence[Group]) -> dict[str, list[Group]]:
    by_prefix: dict[str, list[Group]] = {}
    for group in groups:
        by_prefix.setdefault(_prefix(group), []).append(group)
    return by_prefix
