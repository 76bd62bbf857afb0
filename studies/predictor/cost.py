"""What do an analysis, a prediction and an observation cost: microseconds, median and p99?

Fresh commands have never been analysed before, as most commands of an agent; repeated ones have.
`python -m studies.predictor.cost` on an otherwise idle machine; exit status 1 if the default
predictor misses a target.
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

TARGETS_US = {
    "analyze, fresh": (np.inf, np.inf),
    "predict, fresh": (100.0, 500.0),
    "observe, after its prediction": (50.0, np.inf),
    "predict, repeated": (np.inf, np.inf),
}
"""Of the default predictor, for median and p99."""
RUNS = (
    ("ls -la src", 0.02),
    ("cd /testbed && python -m pytest -q tests/test_io.py 2>&1 | tail -20", 6.0),
    ("grep -rn 'def parse' --include='*.py' . | head -40", 0.4),
    ("pip install -e '.[dev]'", 25.0),
    ("go test ./... -run TestConfig -count=1", 9.0),
    ("for f in a b c; do wc -l $f.txt; done", 0.05),
    ("cat > fix.py <<'EOF'\nimport sys\nprint(sys.argv)\nEOF\npython fix.py", 0.3),
    ("timeout 60 npm run build -- --mode production", 40.0),
    ("docker build -t app . && docker run --rm app make check", 90.0),
    ("find . -maxdepth 2 -name '*.rs' -newer Cargo.lock", 0.1),
    ("bash -lc 'make -j4 all && ./run_benchmark --quick'", 70.0),
    ("sleep 5 && curl -s localhost:8080/health", 5.1),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0: the default predictor meets its targets; 1: it misses one."""
    parser = argparse.ArgumentParser(prog="python -m studies.predictor.cost", description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--num", type=whole_number(1), default=2000, help="calls (%(default)s)")
    options = parser.parse_args(argv)
    rows = [row for kind in options.kinds for row in measure(kind, options.num)]
    print(text_table(list(rows[0]), [list(row.values()) for row in rows], left=2))
    has_passed = all(row["passed"] for row in rows)
    print(json.dumps({"passed": has_passed, **provenance(), "rows": rows}))
    return 0 if has_passed else 1


def measure(kind: str, num: int) -> list[dict[str, Any]]:
    """Return the times of a predictor that has learned every command once."""
    predictor = DurationPredictor(kind)
    for run in RUNS:
        predictor.observe(*run)
    repeated = [RUNS[index % len(RUNS)] for index in range(num)]
    fresh = [(f"{command} fresh{index}", s) for index, (command, s) in enumerate(repeated)]

    def predict(command: str, _: float) -> object:
        return predictor.predict(command)

    forget_analyses()
    analyzed = _times_us(fresh, lambda command, _: analyze_command(command))
    forget_analyses()
    learned = _times_us(fresh, predict, predictor.observe)
    times_us = (*analyzed, *learned, *_times_us(repeated, predict))
    rows = []
    for (what, targets_us), of_call_us in zip(TARGETS_US.items(), times_us, strict=True):
        found_us = np.percentile(of_call_us, [50, 99]).round(1).tolist()
        passed = kind != "default" or bool(np.less_equal(found_us, targets_us).all())
        row = {"kind": kind, "what": what, "median_us": found_us[0], "p99_us": found_us[1]}
        rows.append({**row, "passed": passed})
    return rows


def _times_us(
    runs: Sequence[tuple[str, float]], *calls: Callable[[str, float], object]
) -> list[list[float]]:
    """Return the microseconds of each call on each run, the calls of a run one after another."""
    times_us: list[list[float]] = [[] for _ in calls]
    for run in runs:
        for call, of_call_us in zip(calls, times_us, strict=True):
            start_ns = time.perf_counter_ns()
            call(*run)
            of_call_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    return times_us


if __name__ == "__main__":
    sys.exit(main())
