"""Runs mini-swe-agent's own tests with its classes and with ours, and compares test by test.

`make test-mini-swe`, with `MINI_SWE_SOURCE=FOLDER` for a checkout of its repository at the
installed version. Without one its source distribution is fetched. Where that holds none of FILES
(2.4.6 does not), this is said, and our own comparison of the classes runs in their place.

Exit status 0: every test ended alike, and ours were really used. 1: some did not; they are named.
The last line is one JSON document.
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

from replacement import CLASSES
from source import VERSION, fetch_sdist, tests_in

ROOT = Path(__file__).parents[2]

# Not tests/test_fire.py: it calls paid services.
FILES = (
    "tests/agents/test_default.py",
    "tests/models/test_litellm_model.py",
    "tests/models/test_litellm_textbased_model.py",
    "tests/models/test_format_error_response_persistence.py",
    "tests/models/test_truncation_finish_reason.py",
)
STAND_IN = "tests/agents/test_mini_swe_contract.py"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_SILENT_STARTUP": "1"}


def run_tests(classes: str, source: Path, files: list[str], cache: Path) -> dict[str, Any]:
    """Outcomes of the files with one kind of classes, in a process of its own."""
    outcomes = cache / f"outcomes-{classes}.json"
    outcomes.unlink(missing_ok=True)
    log = cache / f"pytest-{classes}.log"
    plain = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(source), "-W", "ignore"]
    ours = ["-p", "replacement", "--classes", classes, "--outcomes", str(outcomes)]
    with log.open("w") as output:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", *plain, *ours, *files],
            cwd=source,
            check=False,  # tests that fail under both are no difference
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **OFFLINE, "PYTHONPATH": str(Path(__file__).parent)},
        )
    if not outcomes.exists():
        raise SystemExit(f"pytest ended without a result; see {log}")
    result: dict[str, Any] = json.loads(outcomes.read_text())
    return result


def problems(stock: dict[str, Any], ours: dict[str, Any], files: list[str]) -> list[str]:
    """One line per test that ended differently, and per reason not to trust the comparison."""
    lines = [
        f"{test}: {stock['outcomes'].get(test)} with stock, {ours['outcomes'].get(test)} with ours"
        for test in sorted({*stock["outcomes"], *ours["outcomes"]})
        if stock["outcomes"].get(test) != ours["outcomes"].get(test)
    ]
    for name in files:
        ran = [outcome for test, outcome in stock["outcomes"].items() if test.startswith(name)]
        if "passed" not in ran:
            lines.append(f"{name}: no test passed with stock, so the comparison says nothing")
    if not any(ours["num_built"].values()):
        lines.append("none of our classes was built: the replacement did not take")
    return lines


def compare(source: Path, files: list[str], cache: Path) -> dict[str, Any]:
    """Both runs, what differs between them, and what they amount to."""
    results = {classes: run_tests(classes, source, files, cache) for classes in CLASSES}
    outcomes = {
        name: dict(Counter(result["outcomes"].values())) for name, result in results.items()
    }
    for name, counts in outcomes.items():
        shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        print(f"mini-swe-agent's tests, {name}: {shown}")
    stock = results["stock"]["outcomes"]
    return {
        "files": files,
        "outcomes": outcomes,
        "num_built": results["ours"]["num_built"],
        "not_passed_under_both": sorted(test for test in stock if stock[test] != "passed"),
        "differences": problems(results["stock"], results["ours"], files),
    }


def stand_in() -> dict[str, Any]:
    """Our own comparison of the classes, as one difference if it fails."""
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", STAND_IN], cwd=ROOT, check=False)
    return {
        "files": [],
        "stand_in": STAND_IN,
        "differences": [f"{STAND_IN} failed"] if done.returncode else [],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".mini-swe"))
    parser.add_argument("--source", type=Path, help="a checkout of mini-swe-agent's repository")
    arguments = parser.parse_args()
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    source = arguments.source.resolve() if arguments.source else fetch_sdist(cache)
    files = tests_in(source, FILES)
    if not files:
        print(f"{source.name} holds none of mini-swe-agent's tests for these classes")
    found = compare(source, files, cache) if files else stand_in()
    for line in found["differences"]:
        print(f"DIFFERENT {line}")
    print(json.dumps({"mini_swe_agent": VERSION, **found}))
    return 1 if found["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
