"""mini-swe-agent's default agent, with its own model class."""

from __future__ import annotations

import os
import tempfile

os.environ["MSWEA_GLOBAL_CONFIG_DIR"] = tempfile.mkdtemp()
os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "1"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel
from program import BASE_URL, MODEL, main


def run(task: str = "PLAN-bash") -> str:
    model = LitellmModel(
        model_name=f"hosted_vllm/{MODEL}",
        model_kwargs={"api_base": BASE_URL, "api_key": "key"},
        cost_tracking="ignore_errors",
    )
    agent = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template="You help.",
        instance_template="{{task}}",
        cost_limit=0,
    )
    return agent.run(task)["submission"]


main({"bash": run})
