"""Trajectories of TRL's asynchronous GRPO: its rollout loop with its tools, prompts and requests.

Chat template and parser of replies are stand-ins, which need no model: the loop is made without its
constructor, which loads one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import aiohttp
from program import BASE_URL, main, shell_async
from trl.experimental.async_grpo import async_rollout_worker
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

CALL = {"function": {"name": "shell", "arguments": {"command": "sleep 0.2 && grep -rn kv ."}}}


class Tokenizer:
    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[int]:
        return list(json.dumps(messages).encode())


def parse_response(_: Any, token_ids: list[int], prefix: list[int], **__: Any) -> dict[str, Any]:
    if b"RESULT" in bytes(prefix):
        return {"role": "assistant", "content": "FINISHED"}
    return {"role": "assistant", "content": "", "tool_calls": [CALL]}


class Loop(_AsyncRolloutLoop):
    """TRL's loop; the scripted server gives no token ids, so the reply's text stands for them."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.tokenizer, self.chat_template, self.chat_template_kwargs = Tokenizer(), None, {}
        self.max_tool_calling_iterations = None
        self.session, self.vllm_server_url = session, BASE_URL.removesuffix("/v1")
        self._counters: dict[str, float] = defaultdict(float)
        self._rates: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        body = {"model": "tiny", "prompt": prompt_ids, "max_tokens": 4}
        output = await self._post("/v1/completions", body, 60)
        token_ids = list(output["choices"][0]["text"].encode())
        return token_ids, [0.0] * len(token_ids)

    async def _retry(self, make: Any, **_: Any) -> Any:
        return await make()

    def _push_rollout_metrics(self, **_: Any) -> None:
        pass


async def play() -> str:
    async_rollout_worker.parse_response = parse_response
    async_rollout_worker._chain_to_sequences = lambda *_: ([], None)
    async with aiohttp.ClientSession() as session:
        loop = Loop(session)
        loop._fork_threshold_tokens = 0
        question = [{"role": "user", "content": "Is it there?"}]
        completion, *_ = await loop._generate_one(question, {"shell": shell_async}, [])
    return str(completion[-1]["content"])


if __name__ == "__main__":
    main({"async": play})
