"""mini-swe-agent's SWE-bench batch with our classes in the places of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from minisweagent.models.test_models import DeterministicModel
from minisweagent.run.benchmarks import swebench

from agentkv.agents.mini_swe import AgentKVModel, AgentKVTextModel
from agentkv.agents.mini_swe.batch import substitute, tagged_model
from tests.agents.mini_swe_replies import AGENT_CONFIG, SUBMIT, model_config, tool_call
from tests.scripted_server import ScriptedServer

CLASSES: dict[str, tuple[dict[str, Any], type]] = {
    "default": ({}, AgentKVModel),
    "litellm": ({"model_class": "litellm"}, AgentKVModel),
    "text": ({"model_class": "litellm_textbased"}, AgentKVTextModel),
    "ours": ({"model_class": "agentkv.agents.mini_swe.AgentKVTextModel"}, AgentKVTextModel),
    "other": ({"model_class": "deterministic", "outputs": []}, DeterministicModel),
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_litellm_model_is_replaced_by_ours(name: str) -> None:
    """A litellm model becomes ours, and models of other classes stay as they are."""
    config, expected = CLASSES[name]
    assert type(tagged_model(config={"model_name": "openai/m", **config})) is expected


def test_a_batch_without_those_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error says that a later mini-swe-agent cannot be tagged this way."""
    monkeypatch.delattr(swebench, "ProgressTrackingAgent")
    with pytest.raises(ImportError, match="ProgressTrackingAgent"):
        substitute()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["ours", "theirs"])
def test_a_batch_of_instances_is_a_batch_of_jobs(tmp_path: Path, launcher: str) -> None:
    """Each instance is a job, by our launcher or by theirs with the one flag."""
    module, flags = {
        "ours": ("agentkv.agents.mini_swe", ["-c", "model.agentkv_run_id=r"]),
        "theirs": (
            "minisweagent.run.benchmarks.swebench",
            ["--model-class", "agentkv.agents.mini_swe.AgentKVModel"],
        ),
    }[launcher]
    rows = [{"instance_id": name, "problem_statement": "do it"} for name in ("one", "two")]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with ScriptedServer([tool_call("true"), tool_call("true"), tool_call(SUBMIT)]) as server:
        config = {"agent": {**AGENT_CONFIG, "step_limit": 9}, "model": model_config(server)}
        (tmp_path / "config.yaml").write_text(json.dumps(config))
        options = ["--subset", str(tmp_path), "--split", "test", "-o", str(tmp_path / "out")]
        options += ["--environment-class", "local", "-w", "2", "-c", str(tmp_path / "config.yaml")]
        subprocess.run(
            [sys.executable, "-m", module, *options, *flags],
            check=True,
            timeout=300,
            capture_output=True,
            env={**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"},
        )
    preds = json.loads((tmp_path / "out" / "preds.json").read_text())
    assert {pred["model_patch"] for pred in preds.values()} == {"the patch\n"}
    job_ids = {turn.tags["job_id"] for turn in server.turns}
    assert len(job_ids) == 2
    assert set(server.released) == job_ids
    assert launcher == "theirs" or job_ids == {"one.r", "two.r"}
