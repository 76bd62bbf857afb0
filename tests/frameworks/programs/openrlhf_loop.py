"""Trajectories of OpenRLHF: its executor of agents of several turns, with an engine that sends what
it is given to a server, where OpenRLHF's own has vLLM in the same process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor
from program import BASE_URL, main, shell_async


class TwoSteps(AgentInstanceBase):
    def __init__(self) -> None:
        self._num_steps = 0

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        self._num_steps += 1
        feedback = await shell_async("ls") if self._num_steps == 1 else ""
        done, rewards = self._num_steps == 2, torch.tensor(1.0)
        return {"rewards": rewards, "environment_feedback": feedback, "done": done}


class Engine:
    async def generate(self, prompt_token_ids: list[int], params: Any, **_: Any) -> Any:
        body = {"model": "tiny", "prompt": prompt_token_ids, "max_tokens": 4}
        async with httpx.AsyncClient() as client:
            answer = await client.post(f"{BASE_URL}/completions", json=body)
        text = answer.json()["choices"][0]["text"]
        output = SimpleNamespace(token_ids=[1, 2], text=text, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def tokenize(text: str, **_: Any) -> Any:
    return {"input_ids": torch.tensor([[ord(character) for character in text]])}


async def play() -> str:
    executor = MultiTurnAgentExecutor(TwoSteps)
    params = SimpleNamespace(max_tokens=16, logprobs=None)
    result = await executor.execute("Is it there?", "yes", params, 512, tokenize, Engine())
    return f"FINISHED with {result['scores']}"


if __name__ == "__main__":
    main({"async": play})
