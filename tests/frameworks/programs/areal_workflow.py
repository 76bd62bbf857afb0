"""A workflow for areal as a user writes it, in areal's own runner and on its remote engine.

Each request has a new `rid`, as in areal's own workflows.
"""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

import torch
from areal.api import InferenceEngine, ModelRequest, RolloutWorkflow
from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
from areal.engine.vllm_remote import RemotevLLMEngine
from program import BASE_URL, main, shell_async
from transformers import AutoTokenizer

import agentkv

TOKENIZER = AutoTokenizer.from_pretrained(os.environ["TRAINER_MODEL"])
ADDRESS = BASE_URL.removeprefix("http://").removesuffix("/v1")


class Workflow(RolloutWorkflow):
    """Runs the tool that the first reply calls, and ends with the second reply."""

    async def arun_episode(self, engine: InferenceEngine, data: dict[str, Any]) -> dict[str, Any]:
        tokens = TOKENIZER.encode(data["question"])
        generation = GenerationHyperparameters(max_new_tokens=data["max_tokens"])
        async with agentkv.session() as job:
            while True:
                request = ModelRequest(rid=uuid4().hex, input_ids=tokens, gconfig=generation)
                response = await engine.agenerate(request)
                tokens = [*response.input_tokens, *response.output_tokens]
                text = TOKENIZER.decode(response.output_tokens)
                calls = agentkv.parse_tool_calls(text)
                if not calls:
                    break
                async with job.tool(calls[0]):
                    result = await shell_async(calls[0].command)
                tokens += TOKENIZER.encode(result)
        row = torch.tensor([tokens])
        return {"input_ids": row, "attention_mask": torch.ones_like(row)}


def play(max_tokens: int) -> str:
    config = InferenceEngineConfig(experiment_name="e", trial_name="t", consumer_batch_size=1)
    engine = RemotevLLMEngine(config)
    engine.initialize(addr=ADDRESS, train_data_parallel_size=1)
    try:
        batch = engine.rollout_batch(
            [{"question": "Is it there?", "max_tokens": max_tokens}], workflow=Workflow()
        )
        return str(TOKENIZER.decode(batch[0]["input_ids"][0]))[-60:].replace("\n", " ")
    finally:
        engine.destroy()


if __name__ == "__main__":
    main({"async": lambda: play(128), "aborted": lambda: play(100)})
