"""The cost of one analysis, one prediction and one observation of a command.

Fresh commands have never been analysed before, as most commands of an agent; repeated ones have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from agentkv.commands import analyze_command
from agentkv.durations import DurationPredictor

from .rows import Row, samples_row, timed

NUM_COMMANDS = 2000
TARGET_PREDICT_US, TARGET_PREDICT_P99_US, TARGET_OBSERVE_US = 100.0, 500.0, 50.0
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


def measure() -> Iterator[Row]:
    """Time a predictor that has learned every command once."""
    predictor = DurationPredictor()
    for run in RUNS:
        predictor.observe(*run)
    repeated = [RUNS[index % len(RUNS)] for index in range(NUM_COMMANDS)]
    fresh = [(f"{command} fresh{index}", s) for index, (command, s) in enumerate(repeated)]

    def predict(command: str, _: float) -> object:
        return predictor.predict(command)

    [analyzed_us] = _times_us(fresh, lambda command, _: analyze_command(command))
    predicted_us, observed_us = _times_us(fresh, predict, predictor.observe)
    [again_us] = _times_us(repeated, predict)
    name = "predictor: predict, fresh"
    yield samples_row("predictor: analyze, fresh", analyzed_us, "us", None)
    yield samples_row(name, predicted_us, "us", TARGET_PREDICT_US)
    p99_us = float(np.percentile(predicted_us, 99))
    yield Row(f"{name}, p99", p99_us, "us", 0.0, 0.0, 1, TARGET_PREDICT_P99_US)
    name = "predictor: observe, after its prediction"
    yield samples_row(name, observed_us, "us", TARGET_OBSERVE_US)
    yield samples_row("predictor: predict, repeated", again_us, "us", None)


def _times_us(
    runs: list[tuple[str, float]], *calls: Callable[[str, float], object]
) -> list[list[float]]:
    """The microseconds of each call on each run, the calls of a run one after another."""
    times_us = [[timed(partial(call, *run))[0] * 1e6 for call in calls] for run in runs]
    return [list(of_call_us) for of_call_us in zip(*times_us, strict=True)]
