"""Runs vLLM's own scheduler tests under its classes and under ours with each policy, and compares
test by test.

`make test-upstream`. Exit status 0: every test passed or failed alike, and ours were really
used. 1: some did not; they are named. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import substitution
from source import VERSION, fetch_tests
from stand_in_models import write_stand_ins

FILES = ("test_scheduler.py", "test_prefix_caching.py", "test_async_scheduler.py")


def run_tests(scheduler: str, tests: Path, cache: Path) -> dict[str, Any]:
    """Outcomes of FILES with one kind of scheduler, in a process of its own."""
    outcomes = cache / f"outcomes-{scheduler}.json"
    outcomes.unlink(missing_ok=True)
    options = [
        "--noconftest",
        "-p",
        "no:cacheprovider",
        "-p",
        "substitution",
        "-c",
        os.devnull,
    ]
    options += [
        "--rootdir",
        str(tests),
        "-q",
        "--no-header",
        "--tb=short",
        "-W",
        "ignore",
    ]
    options += ["--scheduler", scheduler, "--outcomes", str(outcomes)]
    log = cache / f"pytest-{scheduler}.log"
    with log.open("w") as output:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                *options,
                *(f"tests/v1/core/{name}" for name in FILES),
            ],
            cwd=tests,
            check=False,  # tests that fail under both are no difference
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(tests), str(Path(__file__).parent)]),
                "HF_HOME": str(cache / "models"),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )
    if not outcomes.exists():
        raise SystemExit(f"pytest ended without a result; see {log}")
    result: dict[str, Any] = json.loads(outcomes.read_text())
    return result


def problems(stock: dict[str, Any], ours: dict[str, Any], policy: str) -> list[str]:
    """One line per test that ended differently, and per reason not to trust the comparison."""
    lines = [
        f"{test}: {stock['outcomes'].get(test)} with stock, "
        f"{ours['outcomes'].get(test)} under {policy}"
        for test in sorted({*stock["outcomes"], *ours["outcomes"]})
        if stock["outcomes"].get(test) != ours["outcomes"].get(test)
    ]
    for name in FILES:
        ran = [outcome for test, outcome in stock["outcomes"].items() if name in test]
        if "passed" not in ran:
            lines.append(f"{name}: no test passed with stock, so the comparison says nothing")
    if not ours["num_built"]:
        lines.append(f"{policy}: none of our schedulers was built, the substitution did not take")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".upstream"))
    cache = parser.parse_args().cache.resolve()
    tests = fetch_tests(cache)
    write_stand_ins(cache / "models")
    results = {}
    for scheduler in substitution.SCHEDULERS:
        results[scheduler] = run_tests(scheduler, tests, cache)
        counts = Counter(results[scheduler]["outcomes"].values())
        shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        built = results[scheduler]["num_built"]
        print(f"vLLM {VERSION} tests, {scheduler}: {shown}; {built} of our schedulers built")
    stock = results.pop(substitution.STOCK)
    found = [line for name, ours in results.items() for line in problems(stock, ours, name)]
    for line in found:
        print(f"DIFFERENT {line}")
    summary = {
        "vllm": VERSION,
        "outcomes": {
            name: dict(Counter(result["outcomes"].values()))
            for name, result in {substitution.STOCK: stock, **results}.items()
        },
        "num_schedulers_built": {name: ours["num_built"] for name, ours in results.items()},
        "not_passed_under_stock": sorted(
            test for test, outcome in stock["outcomes"].items() if outcome != "passed"
        ),
        "differences": found,
    }
    print(json.dumps(summary))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
