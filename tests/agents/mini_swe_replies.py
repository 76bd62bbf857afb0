"""Scripted replies, models and agents for the tests of our mini-swe-agent classes."""

import json
from typing import Any

from tests.scripted_server import ScriptedReply, ScriptedServer

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo the patch"
AGENT_CONFIG: dict[str, Any] = {
    "system_template": "You run bash.",
    "instance_template": "Task: {{task}}",
}


def tool_call(*commands: str, name: str = "bash", arguments: str | None = None) -> ScriptedReply:
    """A reply that calls bash with each command, or with `arguments` as they are."""
    calls = [
        {
            "id": f"call-{index}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments or json.dumps({"command": command}),
            },
        }
        for index, command in enumerate(commands)
    ]
    return ScriptedReply("thinking", tool_calls=calls)


def fenced(*commands: str) -> ScriptedReply:
    """A reply with each command in a block of the text mode."""
    blocks = [f"```mswea_bash_command\n{command}\n```" for command in commands]
    return ScriptedReply("\n".join(["thinking", *blocks]))


def model_config(server: ScriptedServer, **kwargs: Any) -> dict[str, Any]:
    """How a mini-swe-agent user names a vLLM server."""
    own = {"api_base": server.base_url, "api_key": "key", "max_retries": 0}
    own.update(kwargs.pop("model_kwargs", {}))
    return {"model_name": "hosted_vllm/m", "model_kwargs": own, **kwargs}
