"""`agentkv train-predictor`: train the duration predictor on your own traces.

The file it writes holds trees trained on the commands and every run as the predictor learned it.
`DurationPredictor.load`, `agentkv predict --state` and the server's setting `predictor_state` read
it. A trace is JSON lines, gzipped or not: {"command": "make -j8", "duration_s": 41.2}, and if known
`session`, `order` (the time of the call), `timeout_s` with `is_error` (it took at least that long),
`censored` (it took at most 3 s).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentkv.durations import DurationPredictor, OfflineModels, load_predictor
from agentkv.errors import InputError

from ..options import DONE, add_json, command_parser
from ..rows import provenance, require_writable
from ..training import train_boosted, train_prior
from ..workload.traces import Trace, read_trace

WITH_TREES = ("default", "context_serve", "boosted")
"""Shipped predictors that start from trees. One of your own is shown the runs and nothing else."""
_KINDS = f"allowed are {', '.join(WITH_TREES)}, FILE.py:CLASS and MODULE:CLASS"


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
    print(json.dumps(document))
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
