"""Facts about SWE-bench instances on a real server; what the model says is never among them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from agentkv.evals.swebench import command
from agentkv.server.process import ServerProcess

pytestmark = pytest.mark.server


def test_two_instances_are_played_graded_and_reported(
    tmp_path: Path, demo_server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a job of several turns whose context is found again, and that is released."""
    out = tmp_path / "run"
    url = demo_server.base_url
    flags = ["--model", "demo", "--base-url", url, "--slice", "0:2", "--step-limit", "4"]
    status = command.main(["demo", *flags, "--out", str(out), "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    document = json.loads(captured.out)
    assert document["instances"] == 2
    assert document["policy"] == "agentkv"
    assert sum(document[name] for name in ("resolved", "unresolved", "empty")) == 2
    run = json.loads((out / "report.json").read_text())["runs"][0]
    assert run["completed"] == 2
    assert run["turns_mean"] > 1
    assert run["cached_share"] > run["cached_share_first"]
    assert run["pins"] > 0
    jobs = httpx.get(f"{url}/agentkv/jobs").json()
    assert not [job for job in jobs["jobs"] if job["job_id"].startswith("agentkv__")]
