"""How well is the duration of bash commands predicted on these traces?

Every predictor learns from the same rows and is judged on the same others, split by time, by
session, by program and by trace: `python -m studies.predictor TRACE --out DIR` in a clone. With
--write-models it also trains the models that the predictors start from.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from agentkv.durations import KINDS, DurationPredictor, OfflineModels
from agentkv.durations.trees import train_models
from agentkv.evals.options import share, whole_number
from agentkv.evals.progress import progress
from agentkv.evals.rows import RunFilesError, provenance, require_free
from agentkv.evals.workload.traces import Trace, TraceError, read_trace

from .baselines import BASELINES
from .replay import (
    Predictor,
    Rows,
    Split,
    cold_split,
    replay,
    session_split,
    time_split,
    tool_split,
    trace_split,
)
from .report import draw, grouped, markdown, score_table
from .scores import intervals, scores

ALL_KINDS = (*KINDS, *BASELINES)
SPLITS = ("time", "session", "tool", "trace", "cold")
FILES = ("rows.jsonl", "report.md", "report.png")


class UsageError(ValueError):
    """Options that do not go together, or a file in the way."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: judged; 2: nothing could be judged."""
    options = _parser().parse_args(argv)
    try:
        document = _study(options)
    except (RunFilesError, TraceError, UsageError) as error:
        print(f"studies.predictor: {error}", file=sys.stderr)
        return 2
    for (split, mode), rows in grouped(document["rows"]).items():
        print(f"\n{split}, {mode}: {document['splits'][split]}\n{score_table(rows)}")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"{json.dumps(row)}\n" for row in document["rows"])
        (options.out / "rows.jsonl").write_text(lines, encoding="utf-8")
        (options.out / "report.md").write_text(markdown(document), encoding="utf-8")
        draw(document["rows"], options.out / "report.png")
    print(json.dumps(document))
    return 0


def _study(options: argparse.Namespace) -> dict[str, Any]:
    _check(options)
    traces = [read_trace(path) for path in options.traces]
    splits = _splits(options, traces)
    if options.write_models is not None:
        models = _train(time_split(traces, options.train_share).folds[0].train, options.seed)
        text = json.dumps(models.to_dict(), separators=(",", ":"))
        options.write_models.write_text(f"{text}\n", encoding="utf-8")
    names = ("kinds", "train_share", "models", "upper_bounds", "resamples")
    config = {name: getattr(options, name) for name in names}
    origin = {**provenance("pandas", "scipy"), "seed": options.seed, "config": config}
    rows = _summaries(_forecasts(options, splits), options)
    return {
        **origin,
        "traces": [_facts(trace) for trace in traces],
        "splits": {split.name: split.what for split in splits},
        "rows": [{**_without_nan(row), **origin} for row in rows],
    }


def _check(options: argparse.Namespace) -> None:
    if len({path.resolve() for path in options.traces}) < len(options.traces):
        raise UsageError("the same trace is named twice: it would be learned and judged")
    if "cold" in options.split and options.models == "train":
        raise UsageError("--split cold learns nothing: name models with --models shipped or FILE")
    written = [options.out / name for name in FILES] if options.out else []
    for path in (*written, *filter(None, [options.write_models])):
        require_free(path, force=options.force)


def _splits(options: argparse.Namespace, traces: Sequence[Trace]) -> list[Split]:
    made: dict[str, Callable[[], Split]] = {
        "time": lambda: time_split(traces, options.train_share),
        "session": lambda: session_split(traces, options.seed),
        "tool": lambda: tool_split(traces),
        "trace": lambda: trace_split(traces),
        "cold": lambda: cold_split(traces),
    }
    splits = [split for name in options.split if (split := made[name]()).folds]
    if not splits:
        num_rows = sum(len(trace.rows) for trace in traces)
        raise UsageError(f"{num_rows} commands are too few to split by {', '.join(options.split)}")
    return splits


def _train(rows: Rows, seed: int) -> OfflineModels:
    try:
        return train_models(rows, seed=seed)
    except ValueError as error:
        raise UsageError(
            f"cannot train models on {len(rows)} commands: {error}; give more traces, or judge "
            "with --models shipped"
        ) from error


def _forecasts(options: argparse.Namespace, splits: Sequence[Split]) -> pd.DataFrame:
    """Every forecast of every fold; models are trained on each fold's own rows, unless named."""
    named: OfflineModels | None = None
    if options.models == "shipped":
        named = OfflineModels.shipped()
    elif options.models != "train":
        named = _read_models(Path(options.models))
    forecasts: list[dict[str, Any]] = []
    steps = [(split, fold) for split in splits for fold in split.folds]
    with progress("folds", len(steps)) as show:
        for number, (split, fold) in enumerate(steps):
            show(number, f"{split.name}: {fold.name}")
            is_trained = named is None and not BASELINES.keys() >= set(options.kinds)
            models = _train(fold.train, options.seed) if is_trained else named
            predictors: dict[str, Predictor] = {
                kind: BASELINES[kind]()
                if kind in BASELINES
                else DurationPredictor(kind, seed=options.seed, models=models)
                for kind in options.kinds
            }
            forecasts += replay(split, fold, predictors, options.upper_bounds)
    return pd.DataFrame(forecasts)


def _read_models(path: Path) -> OfflineModels:
    try:
        return OfflineModels.from_dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: no file of models ({error!r:.100}); --write-models writes one"
        ) from error


def _summaries(forecasts: pd.DataFrame, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row per split, mode and predictor, its forecasts pooled over the folds."""
    rows = []
    for names, found in forecasts.groupby(["split", "mode", "kind"], sort=False):
        folds = {name: scores(of_fold) for name, of_fold in found.groupby("fold", sort=False)}
        row = {
            **dict(zip(("split", "mode", "kind"), names, strict=True)),
            **scores(found),
            "interval_95": intervals(found, num_resamples=options.resamples, seed=options.seed),
            "sources": found.source.value_counts().head(20).to_dict(),
            "predict_us": float(found.predict_us.median()),
            "observe_us": float(found.observe_us.astype(float).median()),
            "folds": folds if len(folds) > 1 else {},
        }
        rows.append(row)
    return rows


def _facts(trace: Trace) -> dict[str, Any]:
    bounds = Counter(row.bound for row in trace.rows)
    return {
        "name": Path(trace.name).name,
        "rows": len(trace.rows),
        "sessions": len({row.session for row in trace.rows}),
        **{bound: bounds[bound] for bound in ("exact", "upper", "lower")},
        "skipped": trace.num_skipped,
    }


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: null instead."""
    if isinstance(value, dict):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.predictor", description=__doc__)
    add = parser.add_argument
    add("traces", nargs="+", type=Path, metavar="TRACE", help="JSON lines, gzipped or not")
    add("--kinds", nargs="+", choices=ALL_KINDS, default=list(ALL_KINDS), metavar="KIND")
    add(
        "--split",
        nargs="+",
        choices=SPLITS,
        default=list(SPLITS[:-1]),
        metavar="SPLIT",
        help="of %(choices)s; default: all but cold, trace if there are several",
    )
    add("--train-share", type=share, default=0.7, help="share of each trace learned (%(default)s)")
    add(
        "--models",
        default="train",
        metavar="train|shipped|FILE",
        help="trained on each fold's own rows (default), those of the package, or a file",
    )
    add("--write-models", type=Path, metavar="FILE", help="train on --train-share of each trace")
    add(
        "--upper-bounds",
        choices=("impute", "skip", "bound"),
        default="bound",
        help="how a command known to have taken at most 3 s is observed: as the median of the "
        "short ones, not at all, or as 3 s (default)",
    )
    add("--resamples", type=whole_number(0), default=200, help="of the bootstrap (%(default)s)")
    add("--seed", type=int, default=0, help="of training, groups and the bootstrap")
    add("--out", type=Path, metavar="DIR", help="write rows.jsonl, report.md and report.png here")
    add("--force", action="store_true", help="overwrite what is there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
