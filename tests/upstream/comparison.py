"""Runs a project's own tests with its classes and with ours in their place, and compares them.

Used by the scripts of this folder, one a project. It is a pytest plugin, too, and so is the
script: `replace` puts ours in the place of the project's classes, of which `kind` there may be
several.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

STOCK = "stock"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentkv")
    group.addoption("--script", required=True)
    group.addoption("--kind", required=True)
    group.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module is imported, so that `from ... import Scheduler` gets ours."""
    recorder = Recorder(config.getoption("--outcomes"))
    config.pluginmanager.register(recorder)
    script: Any = config.pluginmanager.get_plugin(config.getoption("--script"))
    if config.getoption("--kind") != STOCK:
        script.replace(config.getoption("--kind"), recorder)


class Recorder:
    """The worst outcome of each test's phases, and how often each class of ours was built."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self._num_built: dict[str, int] = {}

    def counted(self, ours: Any, prepare: Callable[[dict[str, Any]], None] | None = None) -> type:
        """A class of ours that is counted when built; `prepare` gets its keyword arguments."""
        self._num_built[ours.__name__] = 0

        def build(built: Any, *args: Any, **kwargs: Any) -> None:
            self._num_built[ours.__name__] += 1
            if prepare is not None:
                prepare(kwargs)
            ours.__init__(built, *args, **kwargs)

        return type(ours.__name__, (ours,), {"__init__": build})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed" if report.when == "call" else "error"
        elif report.skipped or report.when == "call":
            self._outcomes.setdefault(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "error"

    def pytest_sessionfinish(self) -> None:
        result = {"outcomes": self._outcomes, "num_built": self._num_built}
        self._path.write_text(json.dumps(result))


def compare(
    script: str,
    kinds: Sequence[str],
    files: Sequence[str],
    *,
    source: Path,
    cache: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Run the files in `source` with stock classes and each kind of ours; what differs."""
    results = {}
    for kind in (STOCK, *kinds):
        outcomes, log = cache / f"outcomes-{kind}.json", cache / f"pytest-{kind}.log"
        outcomes.unlink(missing_ok=True)
        plain = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(source)]
        ours = ["-p", "comparison", "-p", script, "--script", script, "--kind", kind]
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", *plain, *ours]
        path = os.pathsep.join([str(source), str(Path(__file__).parent)])
        with log.open("w") as output:
            subprocess.run(
                [*command, "--outcomes", str(outcomes), "-W", "ignore", *options, *files],
                cwd=source,
                check=False,  # tests that fail under both are no difference
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, "PYTHONPATH": path},
            )
        if not outcomes.exists():
            raise SystemExit(f"pytest ended without a result; see {log}")
        results[kind] = json.loads(outcomes.read_text())
        counts = Counter(results[kind]["outcomes"].values())
        shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        print(f"{source.name}, {kind}: {shown}; built: {results[kind]['num_built']}")
    stock = results[STOCK]["outcomes"]
    return {
        "outcomes": {name: Counter(each["outcomes"].values()) for name, each in results.items()},
        "num_built": {kind: results[kind]["num_built"] for kind in kinds},
        "not_passed_under_stock": sorted(test for test in stock if stock[test] != "passed"),
        "differences": [line for kind in kinds for line in _problems(results, kind, files)],
    }


def _problems(results: Mapping[str, Any], kind: str, files: Sequence[str]) -> list[str]:
    """One line per test that ended differently, and per reason not to trust the comparison."""
    stock, ours = results[STOCK]["outcomes"], results[kind]["outcomes"]
    lines = [
        f"{test}: {stock.get(test)} with stock, {ours.get(test)} with {kind}"
        for test in sorted({*stock, *ours})
        if stock.get(test) != ours.get(test)
    ]
    for name in files:
        if "passed" not in [outcome for test, outcome in stock.items() if name in test]:
            lines.append(f"{name}: no test passed with stock, so the comparison says nothing")
    if not any(results[kind]["num_built"].values()):
        lines.append(f"{kind}: none of our classes was built: the replacement did not take")
    return lines


def report(found: Mapping[str, Any]) -> int:
    """Print the differences, then everything as one JSON document; 1 if there are any."""
    for line in found["differences"]:
        print(f"DIFFERENT {line}")
    print(json.dumps(found))
    return 1 if found["differences"] else 0
