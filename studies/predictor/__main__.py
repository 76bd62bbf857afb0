"""How well is the duration of bash commands predicted on these traces?

Every predictor learns from the same rows and is judged on the same others, split by time, by
session, by program and by trace: `python -m studies.predictor TRACE --out DIR` in a clone. With
--write-models it also trains the models that the predictors start from.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkv.durations import KINDS, DurationPredictor, OfflineModels
from agentkv.durations.trees import train_models
from agentkv.errors import AgentKVError, InputError
from agentkv.evals.options import whole_number
from agentkv.evals.progress import progress
from agentkv.evals.rows import provenance, require_free, write_whole
from agentkv.evals.workload.traces import read_trace

from .baselines import BASELINES
from .replay import SPLITS, Fold, Predictor, Rows, folds_of, replay, time_part
from .report import LEGEND, draw, markdown
from .scores import intervals, scores

ALL_KINDS = (*KINDS, *BASELINES)
FILES = ("rows.jsonl", "report.md", "report.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: judged; 2: nothing could be judged."""
    options = _parser().parse_args(argv)
    try:
        rows = _study(options)
    except AgentKVError as error:
        print(f"studies.predictor: {error}", file=sys.stderr)
        return 2
    report = markdown(rows)
    if options.out is not None:
        rows_file, report_file, figure_file = (options.out / name for name in FILES)
        write_whole(rows_file, "".join(f"{json.dumps(row)}\n" for row in rows))
        text = f"# Duration predictors, side by side\n\n{report}\n{LEGEND}"
        write_whole(report_file, text)
        draw(rows, figure_file)
    print(f"{report}\n{json.dumps({'rows': rows})}")
    return 0


def _study(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row per split, mode and predictor, its forecasts pooled over the folds."""
    written = [options.out / name for name in FILES] if options.out else []
    for path in (*written, *filter(None, [options.write_models])):
        require_free(path, force=options.force)
    if len({path.resolve() for path in options.traces}) < len(options.traces):
        raise InputError("the same trace is named twice: it would be learned and judged")
    traces = [read_trace(path) for path in options.traces]
    folds = [fold for split in options.split for fold in folds_of(split, traces, options.seed)]
    if not folds:
        num_rows = sum(len(trace.rows) for trace in traces)
        raise InputError(f"{num_rows} commands are too few to split by {', '.join(options.split)}")
    if options.write_models is not None:
        models = _train([row for trace in traces for row in time_part(trace)], options.seed)
        text = json.dumps(models.to_dict(), separators=(",", ":"))
        write_whole(options.write_models, f"{text}\n")
    config = {name: getattr(options, name) for name in ("kinds", "models", "resamples")}
    origin = {**provenance("pandas", "scipy"), "seed": options.seed, "config": config}
    rows = []
    for names, found in _forecasts(options, folds).groupby(["split", "mode", "kind"], sort=False):
        of_folds = {name: scores(of_fold) for name, of_fold in found.groupby("fold", sort=False)}
        row = {
            **dict(zip(("split", "mode", "kind"), names, strict=True)),
            **scores(found),
            "interval_95": intervals(found, num_resamples=options.resamples, seed=options.seed),
            "sources": found.source.value_counts().head(20).to_dict(),
            "predict_us": float(found.predict_us.median()),
            "folds": of_folds if len(of_folds) > 1 else {},
        }
        rows.append(row | origin)
    found_rows: list[dict[str, Any]] = json.loads(pd.Series(rows).to_json(orient="values"))
    return found_rows


def _forecasts(options: argparse.Namespace, folds: Sequence[Fold]) -> pd.DataFrame:
    """Replay every fold; models are trained on each fold's own learned rows, unless shipped."""
    is_trained = options.models == "train" and not BASELINES.keys() >= set(options.kinds)
    forecasts: list[dict[str, Any]] = []
    with progress("folds", len(folds)) as show:
        for number, fold in enumerate(folds):
            show(number, f"{fold.split}: {fold.name}")
            models = _train(fold.train, options.seed) if is_trained else None
            predictors: dict[str, Predictor] = {
                kind: BASELINES[kind]()
                if kind in BASELINES
                else DurationPredictor(kind, seed=options.seed, models=models)
                for kind in options.kinds
            }
            forecasts += replay(fold, predictors)
    return pd.DataFrame(forecasts)


def _train(rows: Rows, seed: int) -> OfflineModels:
    try:
        return train_models(rows, seed=seed)
    except ValueError as error:
        raise InputError(
            f"cannot train models on {len(rows)} commands: {error}; give more traces, or judge "
            "with --models shipped"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.predictor", description=__doc__)
    add = parser.add_argument
    add("traces", nargs="+", type=Path, metavar="TRACE", help="JSON lines, gzipped or not")
    add("--kinds", nargs="+", choices=ALL_KINDS, default=list(ALL_KINDS), metavar="KIND")
    add(
        "--split",
        nargs="+",
        choices=list(SPLITS),
        default=[name for name in SPLITS if name != "cold"],
        metavar="SPLIT",
        help="of %(choices)s; default: all but cold, trace if there are several",
    )
    add(
        "--models",
        choices=("train", "shipped"),
        default="train",
        help="trained on each fold's own learned rows (default), or those of the package",
    )
    add("--write-models", type=Path, metavar="FILE", help="train on the first 70%% of each trace")
    add("--resamples", type=whole_number(0), default=200, help="of the bootstrap (%(default)s)")
    add("--seed", type=int, default=0, help="of training, groups and the bootstrap")
    add("--out", type=Path, metavar="DIR", help="write rows.jsonl, report.md and report.png here")
    add("--force", action="store_true", help="overwrite what is there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
