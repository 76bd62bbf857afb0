"""Rollouts of verifiers: its bash agent in a process of its own, its interception server, clients.

`eval` asks for chat completions, streamed, as the agent does; `train`, as prime-rl does, for tokens
that its renderer makes of the messages.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from program import BASE_URL, main
from renderers.configs import DefaultRendererConfig
from transformers import AutoTokenizer
from verifiers.v1.harnesses.bash.harness import BashHarness

# the renderer reads tool calls by tokens that the demo model does not have
MODEL = tempfile.mkdtemp(prefix="tokenizer-")
tokenizer = AutoTokenizer.from_pretrained(os.environ["TRAINER_MODEL"])
tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
tokenizer.save_pretrained(MODEL)
CLIENTS = {
    "eval": vf.EvalClientConfig(base_url=BASE_URL, api_key_var="OPENAI_API_KEY"),
    "train": vf.TrainClientConfig(
        base_url=BASE_URL,
        api_key_var="OPENAI_API_KEY",
        renderer=DefaultRendererConfig(tool_parser="qwen3"),
        renderer_model_name=MODEL,
    ),
}


class BashHere(BashHarness):
    """The bash agent, run by this Python: verifiers has uv install one for it."""

    async def setup(self, runtime: Any) -> None:
        runtime.prepare_uv_script = self._prepare

    async def _prepare(self, script: str, *_: Any, **__: Any) -> list[str]:
        path = Path.cwd() / f"agent-{os.getpid()}.py"
        path.write_text(script)
        return [sys.executable, str(path)]


async def play(client: str) -> str:
    config = vf.AgentConfig(
        model="tiny",
        client=CLIENTS[client],
        harness={"id": "bash", "compaction": None},
        runtime=vf.SubprocessConfig(),
    )
    agent = vf.Agent(config)
    agent.harness = BashHere(agent.config.harness)
    trace = await agent.run(vf.Task(vf.TaskData(prompt="Is it there?")))
    if not trace.ok:
        print(trace.errors, file=sys.stderr)
    return str(trace.messages[-1].content)


if __name__ == "__main__":
    main({name: lambda name=name: play(name) for name in CLIENTS})
