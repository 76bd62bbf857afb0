"""What do an analysis, a prediction and an observation cost: microseconds, median and p99?

Fresh commands have never been analysed before, as most commands of an agent; repeated ones have.
`python -m studies.predictor.cost [TRACE]` on an otherwise idle machine; exit status 1 if the
default predictor misses a target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentkv.commands import analyze_command, forget_analyses
from agentkv.durations import KINDS, DurationPredictor
from agentkv.evals.options import whole_number
from agentkv.evals.rows import provenance
from agentkv.evals.tables import text_table
from agentkv.evals.workload.traces import TraceError, read_trace

TARGETS_US = {
    ("predict", "fresh"): {"median_us": 100.0, "p99_us": 500.0},
    ("observe", "after its prediction"): {"median_us": 50.0},
}
"""Of the default predictor."""
BUILT_IN = (
    ("ls -la src", 0.02),
    ("cd /testbed && python -m pytest -q tests/test_io.py 2>&1 | tail -20", 6.0),
    ("git status && git diff --stat HEAD~1", 0.1),
    ("grep -rn 'def parse' --include='*.py' . | head -40", 0.4),
    ("pip install -e '.[dev]'", 25.0),
    ("go test ./... -run TestConfig -count=1", 9.0),
    ("for f in a b c; do wc -l $f.txt; done", 0.05),
    ("sed -n '1,80p' main.go; cat go.mod", 0.02),
    ("cat > fix.py <<'EOF'\nimport sys\nprint(sys.argv)\nEOF\npython fix.py", 0.3),
    ("timeout 60 npm run build -- --mode production", 40.0),
    ("docker build -t app . && docker run --rm app make check", 90.0),
    ("curl -sS -o out.json https://example.org/data.json", 1.5),
    ("find . -maxdepth 2 -name '*.rs' -newer Cargo.lock", 0.1),
    ("env CI=1 cargo test --release -- --nocapture", 45.0),
    ("bash -lc 'make -j4 all && ./run_benchmark --quick'", 70.0),
    ("sleep 5 && curl -s localhost:8080/health", 5.1),
)

Runs = Sequence[tuple[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: the default predictor meets its targets; 1: it misses one; 2: bad usage."""
    options = _parser().parse_args(argv)
    try:
        runs = _runs(options.trace, options.num)
    except TraceError as error:
        print(f"studies.predictor.cost: {error}", file=sys.stderr)
        return 2
    rows = [row for kind in options.kinds for row in measure(kind, runs, options.seed)]
    print(text_table(list(rows[0]), [list(row.values()) for row in rows], left=3))
    has_passed = all(row["passed"] for row in rows)
    document = {"passed": has_passed, **provenance(), "seed": options.seed, "rows": rows}
    print(json.dumps(document))
    return 0 if has_passed else 1


def measure(kind: str, runs: Runs, seed: int) -> list[dict[str, Any]]:
    """The times of one predictor that has already learned every run once."""
    predictor = DurationPredictor(kind, seed=seed)
    for command, duration_s in runs:
        predictor.observe(command, duration_s)
    fresh = [(f"{command} fresh{index}", took_s) for index, (command, took_s) in enumerate(runs)]
    repeated = [runs[index % min(len(runs), 100)] for index in range(len(runs))]

    def analyze(command: str, _: float) -> object:
        return analyze_command(command)

    def predict(command: str, _: float) -> object:
        return predictor.predict(command)

    forget_analyses()
    (analyze_us,) = _times_us(fresh, analyze)
    forget_analyses()
    predict_us, observe_us = _times_us(fresh, predict, predictor.observe)
    repeated_us, _ = _times_us(repeated, predict, predictor.observe)
    return [
        _row(kind, "analyze", "fresh", analyze_us),
        _row(kind, "predict", "fresh", predict_us),
        _row(kind, "predict", "repeated", repeated_us),
        _row(kind, "observe", "after its prediction", observe_us),
    ]


def _times_us(runs: Runs, *calls: Callable[[str, float], object]) -> list[list[float]]:
    """Microseconds of each call on each run, the calls of a run one after another."""
    times_us: list[list[float]] = [[] for _ in calls]
    for run in runs:
        for call, of_call_us in zip(calls, times_us, strict=True):
            start_ns = time.perf_counter_ns()
            call(*run)
            of_call_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times_us


def _row(kind: str, what: str, commands: str, times_us: Sequence[float]) -> dict[str, Any]:
    median_us, p99_us = (float(value) for value in np.percentile(times_us, [50, 99]))
    found_us = {"median_us": round(median_us, 1), "p99_us": round(p99_us, 1)}
    targets_us = TARGETS_US.get((what, commands), {}) if kind == "default" else {}
    passed = all(found_us[name] <= limit_us for name, limit_us in targets_us.items())
    return {"kind": kind, "what": what, "commands": commands, **found_us, "passed": passed}


def _runs(trace: str | None, num: int) -> Runs:
    known: Runs = BUILT_IN
    if trace is not None:
        known = [(row.command, row.duration_s) for row in read_trace(trace).rows]
    return [known[index % len(known)] for index in range(num)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.predictor.cost", description=__doc__)
    parser.add_argument("trace", nargs="?", help="take its commands; default: 16 built-in ones")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--num", type=whole_number(1), default=2000, help="calls (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the predictors")
    return parser


if __name__ == "__main__":
    sys.exit(main())
