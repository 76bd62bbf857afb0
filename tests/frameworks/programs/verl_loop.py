"""Trajectories of verl's tool agent: its worker, agent loop, client and balancer.

The engine is not verl's, which needs a GPU, but takes the same call and sends the prompt to a
server. What the model says is scripted: a tool call, then an answer. Instead of actors of Ray there
are objects of this process with the same methods.
"""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import requests
from hydra import compose, initialize_config_module
from program import BASE_URL, main, shell_async
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.tools.function_tool import function_tool
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

ROOT_URL = BASE_URL.removesuffix("/v1")
MODEL = os.environ.get("TRAINER_MODEL", "")
TOOL_CALL = (
    '<tool_call>\n{"name": "shell", "arguments": {"command": "sleep 0.2 && grep -rn kv ."}}\n'
    "</tool_call>"
)


async def shell(command: str) -> str:
    """Run a command.

    Args:
        command: the command.
    """
    return await shell_async(command)


class Engine:
    """An engine as verl's client sees it, which aborts its first prompts as a pause does."""

    def __init__(self, num_aborts: int, tokenizer: Any) -> None:
        self._num_aborts = num_aborts
        self._tokenizer = tokenizer

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        has_result = "RESULT" in self._tokenizer.decode(prompt_ids)
        token_ids = self._tokenizer.encode("FINISHED" if has_result else TOOL_CALL)
        params = {"max_tokens": len(token_ids), "ignore_eos": True, "temperature": 0.0}
        if "extra_args" in sampling_params:
            params["extra_args"] = sampling_params["extra_args"]
        body = {"token_ids": list(prompt_ids), "sampling_params": params}
        url = f"{ROOT_URL}/inference/v1/generate"
        answer = await asyncio.to_thread(requests.post, url, json=body, timeout=120)
        answer.raise_for_status()
        reason = "completed"
        if self._num_aborts:
            self._num_aborts -= 1
            token_ids, reason = [], "aborted"
        return TokenOutput(token_ids=token_ids, stop_reason=reason)


class Handle:
    """An actor's handle, of an object in this process."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> SimpleNamespace:
        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = getattr(self._actor, name)(*args, **kwargs)
            return await answer if asyncio.iscoroutine(answer) else answer

        return SimpleNamespace(
            remote=lambda *args, **kwargs: asyncio.ensure_future(call(*args, **kwargs))
        )


async def play(kind: type[LLMServerClient], num_aborts: int = 0) -> str:
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={MODEL}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.prompt_length=1024",
                "actor_rollout_ref.rollout.response_length=512",
                f"actor_rollout_ref.rollout.multi_turn.function_tool_path={__file__}",
                "actor_rollout_ref.rollout.multi_turn.format=hermes",
            ],
        )
    servers: dict[str, Any] = {}
    balancer = GlobalRequestLoadBalancer(servers)
    worker = AgentLoopWorker(config, kind(config, Handle(balancer)))
    engine = Handle(Engine(num_aborts, worker.tokenizer))
    balancer.add_servers({ROOT_URL.removeprefix("http://"): engine})
    question = {"role": "user", "content": "Is it there? " + "Look at every file. " * 40}
    output = await worker._run_agent_loop(
        {"temperature": 1.0},
        {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": False},
        agent_name="tool_agent",
        raw_prompt=np.array([question], dtype=object),
        data_source="openai/gsm8k",
        reward_model={"style": "rule", "ground_truth": "1"},
    )
    return f"FINISHED after {output.num_turns} messages"


if __name__ == "__main__":
    main(
        {
            "async": lambda: play(LLMServerClient),
            "aborted": lambda: play(FullyAsyncLLMServerClient, 1),
        }
    )
else:  # verl imports this file once more, for its tools
    function_tool(shell)
