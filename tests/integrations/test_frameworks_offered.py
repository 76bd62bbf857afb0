"""Hooks that another package offers as an entry point are installed with our own."""

import logging
import sys
from pathlib import Path

import pytest

import agentkv
from agentkv.client.server import forget_servers
from agentkv.integrations import frameworks
from tests.integrations.toy_framework import Agent
from tests.scripted_server import ScriptedServer


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two packages: one follows the toy framework, the other's hooks cannot be loaded."""
    info = tmp_path / "toy_hooks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-hooks\nVersion: 1.0\n")
    points = "toy = toy_hooks:HOOKS\nbroken = toy_hooks:NOTHING\n"
    (info / "entry_points.txt").write_text(f"[{frameworks.GROUP}]\n{points}")
    (tmp_path / "toy_hooks.py").write_text(
        "from agentkv.integrations.runs import a_run\n"
        "HOOKS = {'tests.integrations.toy_framework:Agent.run': a_run()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy_hooks", raising=False)
    monkeypatch.setattr(frameworks, "_offered", {})


def test_hooks_of_another_package_make_its_runs_jobs(
    offers: None, caplog: pytest.LogCaptureFixture
) -> None:
    """A run is a job, and a package whose hooks fail costs one warning."""
    forget_servers()
    caplog.set_level(logging.WARNING)
    jobs = []
    try:
        agentkv.instrument()
        agentkv.instrument()  # the second call changes nothing
        with ScriptedServer():
            Agent().run(lambda: jobs.append(agentkv.current_job()))
            assert agentkv.flush(timeout_s=20)
    finally:
        agentkv.uninstrument()
    assert jobs[0] is not None
    assert [record.args[0] for record in caplog.records if record.args] == ["broken"]
    assert "toy_framework:Agent.run" not in str(agentkv.instrumented())
