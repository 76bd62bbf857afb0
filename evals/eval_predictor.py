"""`agentkv eval-predictor`: how well is the duration of bash commands foretold on these traces?

Every predictor learns from the same rows and is judged on the same others, split by time, by
session, by program and by trace. With --train it also writes the models that the default
predictor starts from; `--train --models-out agentkv/durations/models.json` updates the shipped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agentkv.durations import OfflineModels

from . import predictor_models
from .predictor_models import ModelsError, PredictorMaker
from .predictor_options import AT_LEAST, parser
from .predictor_progress import progress
from .predictor_replay import LearningRules
from .predictor_rows import Scoring, judge
from .predictor_splits import (
    Split,
    cold_split,
    session_split,
    time_split,
    tool_split,
    trace_split,
    train_part,
)
from .predictor_tables import grouped, markdown, score_lines
from .rows import provenance
from .workload.traces import Trace, TraceError, read_traces

PASSED, FAILED, BAD_USAGE = 0, 1, 2
REPORT_FILES = ("report.json", "report.md", "report.png")
_CONFIG = (
    "kinds",
    "train_share",
    "models",
    "upper_bounds",
    "session_folds",
    "min_family_rows",
    "reload_s",
    "context_blocks",
    "resamples",
)

Say = Callable[[str], None]


class UsageError(ValueError):
    """Options that do not go together, or a file in the way."""


def main(argv: Sequence[str] | None = None) -> int:
    """0: done, and all that was required is reached; 1: it is not; 2: nothing could be judged."""
    options = parser(__doc__).parse_args(argv)
    # With --json, standard output carries the document and nothing else.
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    try:
        _check(options)
        traces = read_traces(options.traces)
        splits = _splits(options, traces)
        models = _models(options)
        _make_folders(options)
        document = _start(options, traces, splits)
        if options.train:
            document["trained"] = _train(options, traces, say)
        document["rows"] = _rows(options, splits, models, document, say)
    except (TraceError, ModelsError, UsageError) as error:
        print(f"agentkv eval-predictor: {error}", file=sys.stderr)
        return BAD_USAGE
    except ModuleNotFoundError as error:
        print(
            f"agentkv eval-predictor: the package {error.name!r} is missing: "
            "run `pip install 'agentkv-serving[bench]'`",
            file=sys.stderr,
        )
        return FAILED
    problems = _problems(options, document["rows"])
    document["passed"], document["problems"] = not problems, problems
    _show(document, say)
    if options.json:
        print(json.dumps(document))
    try:
        if options.out is not None and document["rows"]:
            _write(Path(options.out), document, say)
    except OSError as error:
        print(f"agentkv eval-predictor: cannot write into {options.out}: {error}", file=sys.stderr)
        return FAILED
    return FAILED if problems else PASSED


def _check(options: argparse.Namespace) -> None:
    if len({Path(trace).resolve() for trace in options.traces}) < len(options.traces):
        raise UsageError("the same trace is named twice: it would be learned and judged")
    if options.models_out and not options.train:
        raise UsageError("--models-out is where --train writes: give both or neither")
    if options.train and not (options.models_out or options.out):
        raise UsageError("--train needs --out DIR or --models-out FILE to write to")
    if options.train_share == 1.0 and not options.train:
        raise UsageError("--train-share 1 leaves nothing to judge; it goes with --train")
    if "cold" in options.split and options.models == "train":
        raise UsageError("--split cold learns nothing: name models with --models shipped or FILE")
    if options.require and ("default" not in options.kinds or not _has_time(options)):
        raise UsageError("--require judges the default predictor on the time split: name both")
    for path in _files(options):
        if path.exists() and not options.force:
            raise UsageError(f"{path} exists: choose another --out, or --force")


def _files(options: argparse.Namespace) -> list[Path]:
    """All that will be written."""
    files = [Path(options.out) / name for name in REPORT_FILES] if options.out else []
    return [*files, *([_models_path(options)] if options.train else [])]


def _make_folders(options: argparse.Namespace) -> None:
    """Before minutes of work: there must be a place for what comes out."""
    for path in _files(options):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error}") from error


def _has_time(options: argparse.Namespace) -> bool:
    return bool({"time", "all"}.intersection(options.split)) and options.train_share < 1.0


def _models_path(options: argparse.Namespace) -> Path:
    return Path(options.models_out) if options.models_out else Path(options.out) / "models.json"


def _splits(options: argparse.Namespace, traces: Sequence[Trace]) -> list[Split]:
    if options.train_share == 1.0:  # every row goes into the models: none is left to judge
        return []
    wanted = ["time", "session", "tool", "trace"] if "all" in options.split else options.split
    made = {
        "time": lambda: time_split(traces, options.train_share),
        "session": lambda: session_split(traces, options.session_folds, options.seed),
        "tool": lambda: tool_split(traces, options.min_family_rows),
        "trace": lambda: trace_split(traces),
        "cold": lambda: cold_split(traces),
    }
    splits = [made[name]() for name in wanted]
    missing = [split.name for split in splits if not split.folds]
    if missing and "all" not in options.split:
        raise UsageError(f"these traces are too small to split by {', '.join(missing)}")
    splits = [split for split in splits if split.folds]
    if not splits:
        num_rows = sum(len(trace.rows) for trace in traces)
        raise UsageError(f"{num_rows} commands are too few to learn from some and judge others")
    return splits


def _models(options: argparse.Namespace) -> OfflineModels | None:
    if options.models == "train":
        return None
    if options.models == "shipped":
        return OfflineModels.shipped()
    return predictor_models.read_models(Path(options.models))


def _start(
    options: argparse.Namespace, traces: Sequence[Trace], splits: Sequence[Split]
) -> dict[str, Any]:
    return {
        **provenance(),
        "seed": options.seed,
        "config": {name: getattr(options, name) for name in _CONFIG},
        "traces": [_trace_facts(trace) for trace in traces],
        "splits": {split.name: split.what for split in splits},
        "trained": None,
    }


def _trace_facts(trace: Trace) -> dict[str, Any]:
    bounds = Counter(row.bound for row in trace.rows)
    return {
        "name": Path(trace.name).name,
        "rows": len(trace.rows),
        "sessions": len({row.session for row in trace.rows}),
        **{bound: bounds[bound] for bound in ("exact", "upper", "lower")},
        "skipped": trace.num_skipped,
    }


def _train(options: argparse.Namespace, traces: Sequence[Trace], say: Say) -> dict[str, Any]:
    rows = train_part(traces, options.train_share)
    if not rows:
        raise UsageError(f"--train-share {options.train_share} leaves no row to train on")
    path = _models_path(options)
    predictor_models.write_models(predictor_models.train(rows, options.seed), path)
    say(f"models trained on {len(rows)} commands, written to {path} ({path.stat().st_size} bytes)")
    if path.parts[-3:] != ("agentkv", "durations", "models.json"):
        say("to ship them: --train --models-out agentkv/durations/models.json --force")
    return {"path": str(path), "num_rows": len(rows), "num_bytes": path.stat().st_size}


def _rows(
    options: argparse.Namespace,
    splits: Sequence[Split],
    models: OfflineModels | None,
    document: dict[str, Any],
    say: Say,
) -> list[dict[str, Any]]:
    make = PredictorMaker(options.kinds, options.seed, models)
    rules = LearningRules(options.upper_bounds, options.reload_s)
    scoring = Scoring(rules, options.context_blocks, options.resamples, options.seed)
    origin = {name: document[name] for name in ("commit", "versions", "seed", "config")}
    rows: list[dict[str, Any]] = []
    with progress(sum(len(split.folds) for split in splits), say) as begin:
        for split in splits:
            found = judge(split, make, scoring, begin)
            rows.extend({**row, **origin} for row in found)
    return rows


def _problems(options: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> list[str]:
    if not options.require:
        return []
    wanted = ("time", options.require_mode, "default")
    (row,) = [row for row in rows if (row["split"], row["mode"], row["kind"]) == wanted]
    problems = []
    for name, limit in options.require.items():
        value = _value(row, name)
        is_least = name in AT_LEAST
        if value is None or (value < limit if is_least else value > limit):
            shown = "not defined" if value is None else f"{value:.4f}"
            least_or_most = "at least" if is_least else "at most"
            problems.append(
                f"{name} is {shown}, required is {least_or_most} {limit:g} "
                f"(time split, {options.require_mode})"
            )
    return problems


def _value(row: dict[str, Any], name: str) -> float | None:
    if name.startswith("auc_"):
        value = row["auc"][name.removeprefix("auc_")]
    elif name == "regret_s_per_turn":
        value = row["ttl"][name]
    else:
        value = row[name]
    return None if value is None else float(value)


def _show(document: dict[str, Any], say: Say) -> None:
    for (split, mode), rows in grouped(document["rows"]).items():
        say("\n".join(["", f"{split}, {mode}: {document['splits'][split]}", *score_lines(rows)]))
    for problem in document["problems"]:
        say(f"FAIL  {problem}")


def _write(folder: Path, document: dict[str, Any], say: Say) -> None:
    from .predictor_figure import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(document), encoding="utf-8")
    draw(document, folder / "report.png")
    say(f"written to {folder}: {', '.join(REPORT_FILES)}")


if __name__ == "__main__":
    sys.exit(main())
