"""Runs vLLM's own scheduler tests under its classes and under ours with each policy, and compares
test by test.

`make test-upstream`. Exit status 0: every test passed or failed alike, and ours were really
used. 1: some did not; they are named. The last line is one JSON document. It is a pytest plugin,
too, which puts ours in the place of vLLM's classes. The tests come from vLLM's source distribution
into a cache, and are never committed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agentkv.policies.names import CONFIG_KEY, SHIPPED

FILES = tuple(
    f"tests/v1/core/{name}"
    for name in ("test_scheduler.py", "test_prefix_caching.py", "test_async_scheduler.py")
)
STOCK = "stock"
VLLM_VERSION = "0.32.0"
BUILD_TOOLS = ("setuptools_rust", "setuptools_scm")
"""What vLLM's setup.py imports before pip gets the metadata it insists on, in addition to torch."""
PIP = (sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check")


# The plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentkv")
    group.addoption("--kind", required=True)
    group.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module is imported, so that `from ... import Scheduler` gets ours."""
    recorder = Recorder(config.getoption("--outcomes"))
    config.pluginmanager.register(recorder)
    if config.getoption("--kind") != STOCK:
        replace(config.getoption("--kind"), recorder)


def replace(policy: str, recorder: Recorder) -> None:
    """Put our schedulers, under this policy, in the place of vLLM's."""
    # Imported for its effect: its classes must derive from the stock ones, as on a server.
    importlib.import_module("vllm.v1.core.sched.diffusion_scheduler")
    from vllm.v1.core.sched import async_scheduler, scheduler

    from agentkv.integrations.vllm.engine.scheduler import (
        AsyncRetainingScheduler,
        RetainingScheduler,
    )

    def configure(arguments: dict[str, Any]) -> None:
        arguments["vllm_config"].additional_config[CONFIG_KEY] = {"policy": policy}

    modules: tuple[Any, Any] = (scheduler, async_scheduler)
    modules[0].Scheduler = recorder.counted(RetainingScheduler, configure)
    modules[1].AsyncScheduler = recorder.counted(AsyncRetainingScheduler, configure)


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Stands in for the fixture of vLLM's conftest: its logger reaches the root logger."""
    logger = logging.getLogger("vllm")
    propagates, logger.propagate = logger.propagate, True
    with caplog.at_level(logging.INFO, logger="vllm"):
        yield caplog
    logger.propagate = propagates


class Recorder:
    """The worst outcome of each test's phases, and how often each class of ours was built."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self._num_built: dict[str, int] = {}

    def counted(self, ours: Any, prepare: Callable[[dict[str, Any]], None]) -> type:
        """A class of ours that is counted when built; `prepare` gets its keyword arguments."""
        self._num_built[ours.__name__] = 0

        def build(built: Any, *args: Any, **kwargs: Any) -> None:
            self._num_built[ours.__name__] += 1
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


# The comparison


def fetch_vllm(cache: Path) -> Path:
    """The folder that holds vLLM's `tests` package; downloads 45 MB the first time.

    pip downloads no sdist without running its `setup.py` for metadata: VLLM_TARGET_DEVICE=empty
    keeps that from looking for a compiler, and the version override from adding a suffix which
    pip would take for another version.
    """
    tools = cache / "build-tools"
    environment = {"PYTHONPATH": str(tools), "VLLM_TARGET_DEVICE": "empty"}
    environment |= {"VLLM_VERSION_OVERRIDE": VLLM_VERSION}
    if not tools.is_dir():
        target = ("--target", str(tools), "--no-warn-conflicts")
        subprocess.run([*PIP, "install", *target, *BUILD_TOOLS], check=True)
    unpacked = cache / f"vllm-{VLLM_VERSION}"
    if unpacked.is_dir():
        return unpacked
    with tempfile.TemporaryDirectory(dir=cache) as scratch:  # moved into place when it is whole
        what = ("--no-deps", "--no-binary", "vllm", "--no-build-isolation", f"vllm=={VLLM_VERSION}")
        command = [*PIP, "download", *what, "--dest", scratch]
        subprocess.run(command, check=True, env={**os.environ, **environment})
        (archive,) = Path(scratch).glob("*.tar.gz")
        found = Path(scratch) / unpacked.name
        found.mkdir()
        with tarfile.open(archive) as members:
            # Not the project's package, which would be imported in place of the installed one.
            tests = [m for m in members if m.name.startswith(f"{unpacked.name}/tests/")]
            members.extractall(scratch, tests, filter="data")
        found.rename(unpacked)
    return unpacked


def run_tests(kind: str, source: Path, cache: Path) -> dict[str, Any]:
    """Outcome by test, and how often each class of ours was built."""
    outcomes, log = cache / f"outcomes-{kind}.json", cache / f"pytest-{kind}.log"
    outcomes.unlink(missing_ok=True)
    plain = ["-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(source), "--noconftest"]
    ours = ["-p", Path(__file__).stem, "--kind", kind, "--outcomes", str(outcomes)]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", *plain, *ours]
    with log.open("w") as output:
        subprocess.run(
            [*command, "-W", "ignore", *FILES],
            cwd=source,
            check=False,  # tests that fail under both are no difference
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                **{"HF_HOME": str(cache / "models"), "HF_HUB_OFFLINE": "1"},
                "VLLM_NO_USAGE_STATS": "1",
                "PYTHONPATH": os.pathsep.join([str(source), str(Path(__file__).parent)]),
            },
        )
    if not outcomes.exists():
        raise SystemExit(f"pytest ended without a result; see {log}")
    result: dict[str, Any] = json.loads(outcomes.read_text())
    counts = Counter(result["outcomes"].values())
    shown = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"{source.name}, {kind}: {shown}; built: {result['num_built']}")
    return result


def problems(results: Mapping[str, Any], kind: str) -> list[str]:
    """One line per test that ended differently, and per reason not to trust the comparison."""
    stock, ours = results[STOCK]["outcomes"], results[kind]["outcomes"]
    lines = [
        f"{test}: {stock.get(test)} with stock, {ours.get(test)} with {kind}"
        for test in sorted({*stock, *ours})
        if stock.get(test) != ours.get(test)
    ]
    for name in FILES:
        if "passed" not in [outcome for test, outcome in stock.items() if name in test]:
            lines.append(f"{name}: no test passed with stock, so the comparison says nothing")
    if not any(results[kind]["num_built"].values()):
        lines.append(f"{kind}: none of our classes was built: the replacement did not take")
    return lines


def main() -> int:
    from stand_in_models import write_stand_ins

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path(".upstream"))
    cache = parser.parse_args().cache.resolve()
    source = fetch_vllm(cache)
    write_stand_ins(cache / "models")
    results = {kind: run_tests(kind, source, cache) for kind in (STOCK, *SHIPPED)}
    stock = results[STOCK]["outcomes"]
    differences = [line for kind in SHIPPED for line in problems(results, kind)]
    for line in differences:
        print(f"DIFFERENT {line}")
    found = {
        "vllm": VLLM_VERSION,
        "outcomes": {name: Counter(each["outcomes"].values()) for name, each in results.items()},
        "num_built": {kind: results[kind]["num_built"] for kind in SHIPPED},
        "not_passed_under_stock": sorted(test for test in stock if stock[test] != "passed"),
        "differences": differences,
    }
    print(json.dumps(found))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
