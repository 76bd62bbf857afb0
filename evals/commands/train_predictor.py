"""`agentkv train-predictor`: train the duration predictor on your own traces.

The file it writes holds trees trained on the commands and every run as the predictor learned it.
`DurationPredictor.load`, `agentkv predict --state` and the server's setting `predictor_state` read
it. A trace is JSON lines, gzipped or not: {"command": "make -j8", "duration_s": 41.2}, and if known
`session`, `order` (the time of the call), `timeout_s` with `is_error` (it took at least that long),
`censored` (it took at most 3 s). Trees are trained with LightGBM rather than XGBoost, whose Linux
wheel brings 300 MB of CUDA libraries.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentkv.command_line import DONE, add_json, command_parser, print_document
from agentkv.commands import analyze_command
from agentkv.commands.features import command_features
from agentkv.durations import DurationPredictor, OfflineModels, load_predictor
from agentkv.durations.grid import LOWEST_S
from agentkv.durations.prediction import SLOW_S
from agentkv.durations.prior import prior_input
from agentkv.durations.trees import Node, TreeEnsemble
from agentkv.errors import InputError

from ..rows import provenance, require_writable
from ..traces.commands import Trace, TracedCommand, read_trace

WITH_TREES = ("default", "context_serve", "boosted")
"""Shipped predictors that start from trees. One of your own is shown the runs and nothing else."""
_KINDS = f"allowed are {', '.join(WITH_TREES)}, FILE.py:CLASS and MODULE:CLASS"
MIN_RUNS = 100
"""Training refuses fewer runs."""
MAX_BOOSTED_DEPTH = 4
NUM_BOOSTED_TREES = 60
_NUM_PRIOR_TREES = 40
# One thread and row-wise histograms: the same trees on every machine under one seed.
_SETTINGS = {
    "learning_rate": 0.1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}
_PRIOR_SETTINGS = {
    **_SETTINGS,
    # robust to the runs that hang; its bend is 1.5 in ln(seconds)
    "objective": "huber",
    "alpha": 1.5,
    "num_leaves": 6,
    "min_data_in_leaf": 40,
    "lambda_l2": 20.0,
    "boost_from_average": False,
}
_BOOSTED_SETTINGS = {
    **_SETTINGS,
    "objective": "binary",
    "max_depth": MAX_BOOSTED_DEPTH,
    "num_leaves": 2**MAX_BOOSTED_DEPTH,
    "min_data_in_leaf": 20,
    "lambda_l2": 1.0,
}
_BOUND_WEIGHT = 0.5
_LN_BELOW_BOUND = -1.6
"""A run known to be shorter than a bound is taken as a fifth of it: the mean of ln(uniform) is -1,
and short runs are more common than long ones."""
_LN_ABOVE_BOUND = 0.7


def main(argv: Sequence[str]) -> int:
    """0: written. Raises InputError for no traces to train on, or --out taken."""
    options = _parser().parse_args(argv)
    if load_predictor(options.kind) is None and options.kind not in WITH_TREES:
        raise InputError(f"--kind: got {options.kind!r}, which has no trees to train; {_KINDS}")
    require_writable(options.out, force=options.force)
    traces = [read_trace(path) for path in options.traces]
    try:
        document = train(traces, options.out, options.kind, options.seed)
    except (ValueError, OSError) as error:
        raise InputError(str(error)) from error
    if not options.json:
        print(
            f"trained on {document['num_commands']} commands ({document['num_skipped']} lines "
            f"without a measurement skipped), written to {options.out}\n"
            f"try: agentkv predict 'make' --kind {options.kind} --state {options.out}"
        )
    print_document(document, is_asked_for=options.json)
    return DONE


def train(traces: Sequence[Trace], path: Path, kind: str, seed: int) -> dict[str, Any]:
    """Write a predictor of `kind` that has learned these traces; return what it learned from.

    Raises ValueError for too few commands, or too much alike, and OSError.
    """
    rows = sorted((row for trace in traces for row in trace.rows), key=lambda row: row.order)
    models = OfflineModels.shipped()
    if kind == "default":
        models = replace(models, prior=train_prior(rows, seed=seed))
    elif kind in WITH_TREES:
        models = replace(models, boosted=train_boosted(rows, seed=seed))
    predictor = DurationPredictor(kind, seed=seed, models=models)
    for row in rows:
        predictor.observe(row.command, row.duration_s, censored=row.bound == "lower")
    predictor.save(path)
    bounds = Counter(row.bound for row in rows)
    return {
        **provenance(),
        "seed": seed,
        "kind": kind,
        "path": str(path),
        "num_bytes": path.stat().st_size,
        "num_commands": len(rows),
        "num_at_least": bounds["lower"],
        "num_at_most": bounds["upper"],
        "num_skipped": sum(trace.num_skipped for trace in traces),
    }


def train_prior(runs: Sequence[TracedCommand], *, seed: int = 0) -> TreeEnsemble:
    """Train the default predictor's trees: what a command's shape adds to ln(typical seconds).

    Deterministic under `seed`. Needs LightGBM (ImportError without). Raises ValueError for fewer
    than MIN_RUNS.
    """
    import lightgbm
    import numpy as np

    inputs = [prior_input(analyze_command(run.command)) for run in runs]
    data = lightgbm.Dataset(
        np.array([each.features for each in inputs]),
        np.array([_ln_s(run) for run in runs]),
        weight=np.array([1.0 if run.bound == "exact" else _BOUND_WEIGHT for run in runs]),
        init_score=np.array([math.log(each.typical_s) for each in inputs]),
        params={"verbose": -1},
    )
    return _trained(data, _PRIOR_SETTINGS, _NUM_PRIOR_TREES, seed)


def train_boosted(runs: Sequence[TracedCommand], *, seed: int = 0) -> TreeEnsemble:
    """Train ContextServe's boosted layer: the log-odds that a command is slow.

    As `train_prior`; raises ValueError also unless both slow and other commands are among them.
    """
    import lightgbm
    import numpy as np

    rows = list(labelled(runs))
    if len({is_slow for _, is_slow in rows}) < 2:
        raise ValueError(
            f"training needs commands over and under {SLOW_S:g} s, got {len(rows)} of one kind"
        )
    features = np.array([command_features(analyze_command(text)) for text, _ in rows])
    labels = np.array([is_slow for _, is_slow in rows], dtype=float)
    data = lightgbm.Dataset(features, labels)
    return _trained(data, _BOOSTED_SETTINGS, NUM_BOOSTED_TREES, seed)


def labelled(runs: Sequence[TracedCommand]) -> Iterator[tuple[str, bool]]:
    """Yield commands and whether they were slow, but for those whose bound leaves that open."""
    for run in runs:
        is_over = run.duration_s > SLOW_S
        if run.bound != ("upper" if is_over else "lower"):
            yield run.command, is_over


def _trained(data: Any, settings: dict[str, Any], num_trees: int, seed: int) -> TreeEnsemble:
    import lightgbm

    if len(data.label) < MIN_RUNS:
        raise ValueError(f"{len(data.label)} runs are too few, {MIN_RUNS} are needed")
    dump = lightgbm.train({**settings, "seed": seed}, data, num_trees).dump_model()
    return TreeEnsemble([_from_lightgbm(tree["tree_structure"]) for tree in dump["tree_info"]])


def _ln_s(run: TracedCommand) -> float:
    ln_s = math.log(max(run.duration_s, LOWEST_S))
    return ln_s + {"exact": 0.0, "upper": _LN_BELOW_BOUND, "lower": _LN_ABOVE_BOUND}[run.bound]


def _from_lightgbm(node: dict[str, Any]) -> Node | float:
    """Convert a tree of `Booster.dump_model()`, for numeric features without missing values."""
    if "leaf_value" in node:
        return float(f"{node['leaf_value']:.5g}")
    if node["decision_type"] != "<=":
        raise ValueError(f"only numeric splits can be read, got {node['decision_type']!r}")
    branches = _from_lightgbm(node["left_child"]), _from_lightgbm(node["right_child"])
    return (int(node["split_feature"]), float(f"{node['threshold']:.6g}"), *branches)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("train-predictor", __doc__)
    add = parser.add_argument
    add("traces", nargs="+", type=Path, metavar="TRACE", help="JSON lines, gzipped or not")
    add("--out", type=Path, required=True, metavar="FILE", help="where the predictor is written")
    kind_help = f"{_KINDS}; the server's setting `predictor` must name the same"
    add("--kind", default="default", metavar="NAME", help=f"{kind_help} (default %(default)s)")
    add("--seed", type=int, default=0, help="of the training (default %(default)s)")
    add("--force", action="store_true", help="overwrite FILE")
    add_json(parser)
    return parser
