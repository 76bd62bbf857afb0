"""`python -m studies.predictor TRACE`: how well are durations of bash commands predicted on it?

Each predictor learns the first 70% of every trace by time (or nothing, with --split cold), then
forecasts the rest, and learns each row after its forecast as a server does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scipy import stats

from agentkv.durations import KINDS, DurationPredictor, Prediction
from agentkv.errors import AgentKVError, InputError
from agentkv.evals.rows import provenance
from agentkv.evals.tables import cell, text_table

from .traces import TracedCommand, read_trace

TRAIN_SHARE = 0.7
THRESHOLDS_S = (2.0, 5.0, 10.0)
SHORTEST_S = 0.01
"""Durations are raised to this before their logarithm is taken; clocks in traces tick in ms."""
Forecasts = Sequence[tuple[TracedCommand, Prediction]]
COLUMNS = (
    "predictor",
    "n",
    *(f"AUC > {t:g} s" for t in THRESHOLDS_S),
    "|ln error|",
    "us",
    "us max",
)


def main(argv: Sequence[str] | None = None) -> int:
    """0: judged; 2: nothing could be judged."""
    options = _parser().parse_args(argv)
    try:
        learned, judged = split(options.traces, is_cold=options.split == "cold")
        rows = []
        for kind in options.kinds:
            predictor = DurationPredictor(kind, seed=options.seed)
            rows.append({"kind": kind, **judge(predictor, learned, judged)})
    except AgentKVError as error:
        print(f"studies.predictor: {error}", file=sys.stderr)
        return 2
    print(text_table(COLUMNS, [[row["kind"], *_cells(row)] for row in rows], rule=True))
    config = {"split": options.split}
    origin = {**provenance("scipy"), "seed": options.seed, "config": config}
    print(json.dumps({"rows": rows, **origin}))
    return 0


def split(
    paths: Sequence[Path], *, is_cold: bool
) -> tuple[list[TracedCommand], list[TracedCommand]]:
    """What is learned and what is judged of each trace, in order of time. Raises InputError."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same trace is named twice: it would be learned and judged")
    learned: list[TracedCommand] = []
    judged: list[TracedCommand] = []
    for trace in map(read_trace, paths):
        num_learned = 0 if is_cold else round(len(trace) * TRAIN_SHARE)
        learned += trace[:num_learned]
        judged += trace[num_learned:]
    if not judged:
        raise InputError("no command is left to judge: give longer traces, or --split cold")
    return learned, judged


def judge(
    predictor: DurationPredictor,
    learned: Sequence[TracedCommand],
    judged: Sequence[TracedCommand],
) -> dict[str, Any]:
    """The scores of a predictor that goes on learning while it is judged.

    A row with an upper bound ("at most 3 s") is observed as that bound.
    """
    for row in learned:
        predictor.observe(row.command, row.duration_s, censored=row.bound == "lower")
    forecasts, took_us = [], []
    for row in judged:
        began_s = time.thread_time()
        forecasts.append((row, predictor.predict(row.command)))
        took_us.append(1e6 * (time.thread_time() - began_s))
        predictor.observe(row.command, row.duration_s, censored=row.bound == "lower")
    errors = [
        abs(math.log(max(found.p50_s, SHORTEST_S)) - math.log(max(row.duration_s, SHORTEST_S)))
        for row, found in forecasts
        if row.bound == "exact"
    ]
    return {
        "num_judged": len(forecasts),
        **{f"auc_{threshold_s:g}": auc(forecasts, threshold_s) for threshold_s in THRESHOLDS_S},
        "median_abs_log_error": median(errors) if errors else None,
        "predict_p50_us": median(took_us),
        "predict_max_us": max(took_us),
    }


def auc(forecasts: Forecasts, threshold_s: float) -> float | None:
    """P(a longer command scores above a shorter one), ties half; None if one class is missing."""
    scores: dict[bool | None, list[float]] = {True: [], False: [], None: []}
    for row, found in forecasts:
        scores[is_over(row, threshold_s)].append(found.p_over(threshold_s))
    num_pairs = len(scores[True]) * len(scores[False])
    if not num_pairs:
        return None
    ranks = stats.rankdata([*scores[True], *scores[False]])[: len(scores[True])]
    return float(ranks.sum() - len(ranks) * (len(ranks) + 1) / 2) / num_pairs


def is_over(row: TracedCommand, threshold_s: float) -> bool | None:
    """Whether the command ran longer; None where its bound leaves that open."""
    if row.bound == "lower":
        return True if row.duration_s >= threshold_s else None
    if row.bound == "upper":
        return False if row.duration_s <= threshold_s else None
    return row.duration_s > threshold_s


def _cells(row: dict[str, Any]) -> list[str]:
    names = [f"auc_{threshold_s:g}" for threshold_s in THRESHOLDS_S]
    scores = [cell(row[name], ".3f") for name in (*names, "median_abs_log_error")]
    took_us = [cell(row[name], ".0f") for name in ("predict_p50_us", "predict_max_us")]
    return [str(row["num_judged"]), *scores, *took_us]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.predictor", description=__doc__)
    add = parser.add_argument
    add("traces", nargs="+", type=Path, metavar="TRACE", help="JSON lines, gzipped or not")
    kinds = f"of {', '.join(KINDS)} (default: both)"
    add("--kinds", nargs="+", default=list(KINDS), metavar="KIND", help=kinds)
    add("--split", choices=("time", "cold"), default="time", help="cold: nothing is learned before")
    add("--seed", type=int, default=0, help="of predictors that draw")
    return parser


if __name__ == "__main__":
    sys.exit(main())
