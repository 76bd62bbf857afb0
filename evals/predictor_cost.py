"""What a prediction and an observation cost: microseconds per call, median and p99.

Fresh commands have never been analysed before, as most commands of an agent; repeated ones have.
Run it on an otherwise idle machine: `python -m agentkv.evals.predictor_cost [TRACE]`. Exit status
1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from agentkv.commands import analyze_command, forget_analyses
from agentkv.durations import KINDS, DurationPredictor

from .options import whole_number
from .rows import provenance
from .workload.traces import TraceError, read_trace

PASSED, FAILED, BAD_USAGE = 0, 1, 2
TARGETS_US = {"predict": {"median": 100.0, "p99": 500.0}, "observe": {"median": 50.0}}
"""Of the default predictor: predict on fresh commands, observe on those just predicted."""
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


def main(argv: Sequence[str] | None = None) -> int:
    """0: the default predictor meets its targets; 1: it misses one; 2: bad usage."""
    options = _parser().parse_args(argv)
    say = partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    try:
        runs = _runs(options.trace, options.num)
    except TraceError as error:
        print(f"predictor_cost: {error}", file=sys.stderr)
        return BAD_USAGE
    rows = [row for kind in options.kinds for row in measure(kind, runs, options.seed)]
    for row in rows:
        say(describe(row))
    has_passed = all(row["passed"] for row in rows)
    document = {**provenance(), "seed": options.seed, "num_commands": len(runs)}
    print(json.dumps({"passed": has_passed, **document, "rows": rows}))
    return PASSED if has_passed else FAILED


def measure(kind: str, runs: Sequence[tuple[str, float]], seed: int) -> list[dict[str, Any]]:
    """The times of one predictor that has already learned every run once."""
    predictor = DurationPredictor(kind, seed=seed)
    for command, duration_s in runs:
        predictor.observe(command, duration_s)
    fresh = [(f"{command} fresh{index}", took_s) for index, (command, took_s) in enumerate(runs)]
    forget_analyses()
    analyze_us = _each_us(fresh, lambda command, _: analyze_command(command))
    forget_analyses()
    predict_us, observe_us = _predict_then_observe_us(predictor, fresh)
    repeated = [runs[index % min(len(runs), 100)] for index in range(len(runs))]
    repeated_us, _ = _predict_then_observe_us(predictor, repeated)
    return [
        _row(kind, "analyze", "fresh", analyze_us),
        _row(kind, "predict", "fresh", predict_us),
        _row(kind, "predict", "repeated", repeated_us),
        _row(kind, "observe", "after its prediction", observe_us),
    ]


def describe(row: dict[str, Any]) -> str:
    """One line: what, median, p99, and whether a target is met."""
    verdict = "" if not row["targets_us"] else "ok" if row["passed"] else "MISSED"
    return (
        f"{row['kind']:14} {row['what']:8} {row['commands']:21} "
        f"median {row['median_us']:7.1f} us, p99 {row['p99_us']:7.1f} us, "
        f"n {row['n']}  {verdict}"
    ).rstrip()


def _predict_then_observe_us(
    predictor: DurationPredictor, runs: Sequence[tuple[str, float]]
) -> tuple[list[float], list[float]]:
    predict_us, observe_us = [], []
    for run in runs:
        predict_us += _each_us([run], lambda command, _: predictor.predict(command))
        observe_us += _each_us([run], predictor.observe)
    return predict_us, observe_us


def _each_us(
    runs: Sequence[tuple[str, float]], call: Callable[[str, float], object]
) -> list[float]:
    times_us = []
    for command, duration_s in runs:
        start_ns = time.perf_counter_ns()
        call(command, duration_s)
        times_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times_us


def _row(kind: str, what: str, commands: str, times_us: Sequence[float]) -> dict[str, Any]:
    median_us, p99_us = (float(value) for value in np.percentile(times_us, [50, 99]))
    is_judged = kind == "default" and commands != "repeated"
    targets_us = TARGETS_US.get(what, {}) if is_judged else {}
    found_us = {"median": median_us, "p99": p99_us}
    return {
        "kind": kind,
        "what": what,
        "commands": commands,
        "median_us": median_us,
        "p99_us": p99_us,
        "n": len(times_us),
        "targets_us": targets_us,
        "passed": all(found_us[name] <= limit_us for name, limit_us in targets_us.items()),
    }


def _runs(trace: str | None, num: int) -> list[tuple[str, float]]:
    known = (
        list(BUILT_IN)
        if trace is None
        else [(row.command, row.duration_s) for row in read_trace(trace).rows]
    )
    return [known[index % len(known)] for index in range(num)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentkv.evals.predictor_cost", description=__doc__)
    parser.add_argument("trace", nargs="?", help="take its commands; default: 16 built-in ones")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument(
        "--num", type=whole_number(1), default=2000, help="calls timed (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the predictors")
    parser.add_argument("--json", action="store_true", help="print one JSON document alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
