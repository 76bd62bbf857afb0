"""pytest plugin: runs mini-swe-agent's tests with its own classes or with ours in their place.

Loaded with `-p replacement`; writes the outcome of every test to `--outcomes`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

CLASSES = ("stock", "ours")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("agentkv")
    group.addoption("--classes", choices=CLASSES, required=True)
    group.addoption("--outcomes", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module is imported, so that `from ... import DefaultAgent` is ours."""
    recorder = Recorder(config.getoption("--outcomes"))
    config.pluginmanager.register(recorder)
    if config.getoption("--classes") == "ours":
        _replace(recorder)


class Recorder:
    """The worst outcome of each test's phases, and how often each class of ours was built."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcomes: dict[str, str] = {}
        self.num_built: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "failed" if report.when == "call" else "error"
        elif report.skipped or report.when == "call":
            self._outcomes.setdefault(report.nodeid, report.outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._outcomes[report.nodeid] = "error"

    def pytest_sessionfinish(self) -> None:
        result = {"outcomes": self._outcomes, "num_built": self.num_built}
        self._path.write_text(json.dumps(result))


def _replace(recorder: Recorder) -> None:
    from minisweagent.agents import default
    from minisweagent.models import litellm_model, litellm_textbased_model

    from agentkv.agents.mini_swe import AgentKVAgent, AgentKVModel, AgentKVTextModel

    def counted(ours: Any) -> type:
        recorder.num_built[ours.__name__] = 0

        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            recorder.num_built[ours.__name__] += 1
            ours.__init__(self, *args, **kwargs)

        return type(ours.__name__, (ours,), {"__init__": build})

    names: tuple[tuple[Any, str, Any], ...] = (
        (default, "DefaultAgent", AgentKVAgent),
        (litellm_model, "LitellmModel", AgentKVModel),
        (litellm_textbased_model, "LitellmTextbasedModel", AgentKVTextModel),
    )
    for module, name, ours in names:
        setattr(module, name, counted(ours))
