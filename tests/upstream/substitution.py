"""pytest plugin: runs vLLM's tests with its own scheduler classes, or with ours in their place
under one of the policies.

Loaded with `-p substitution`; writes the outcome of every test to `--outcomes`.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentkv.integrations.vllm.policy import POLICY_CLASSES

STOCK = "stock"
SCHEDULERS = (STOCK, *POLICY_CLASSES)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentkv")
    group.addoption("--scheduler", choices=SCHEDULERS, required=True)
    group.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module is imported, so that `from ... import Scheduler` gets ours."""
    recorder = Recorder(config.getoption("--outcomes"))
    config.pluginmanager.register(recorder)
    if config.getoption("--scheduler") != STOCK:
        _substitute(recorder, policy=config.getoption("--scheduler"))


class Recorder:
    """The worst outcome of each test's phases, and how many schedulers of ours were built."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self.num_built = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed" if report.when == "call" else "error"
        elif report.skipped or report.when == "call":
            self._outcomes.setdefault(report.nodeid, report.outcome)

    def pytest_sessionfinish(self) -> None:
        result = {"outcomes": self._outcomes, "num_built": self.num_built}
        self._path.write_text(json.dumps(result))


def _substitute(recorder: Recorder, *, policy: str) -> None:
    # Imported for its effect: its classes must derive from the stock ones, as on a server.
    importlib.import_module("vllm.v1.core.sched.diffusion_scheduler")
    from vllm.v1.core.sched import async_scheduler, scheduler

    from agentkv.integrations.vllm.engine.scheduler import (
        AsyncRetainingScheduler,
        RetainingScheduler,
    )
    from agentkv.integrations.vllm.settings import CONFIG_KEY

    def counted(ours: Any) -> type:
        def build(self: Any, *args: Any, vllm_config: Any, **kwargs: Any) -> None:
            recorder.num_built += 1
            vllm_config.additional_config[CONFIG_KEY] = {"policy": policy}
            ours.__init__(self, *args, vllm_config=vllm_config, **kwargs)

        return type(ours.__name__, (ours,), {"__init__": build})

    names: tuple[tuple[Any, str, Any], ...] = (
        (scheduler, "Scheduler", RetainingScheduler),
        (async_scheduler, "AsyncScheduler", AsyncRetainingScheduler),
    )
    for module, name, ours in names:
        setattr(module, name, counted(ours))


@pytest.fixture
def caplog_vllm(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Stands in for the fixture of vLLM's conftest: its logger reaches the root logger."""
    logger = logging.getLogger("vllm")
    propagates, logger.propagate = logger.propagate, True
    with caplog.at_level(logging.INFO, logger="vllm"):
        yield caplog
    logger.propagate = propagates
