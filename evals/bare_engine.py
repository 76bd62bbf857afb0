"""vLLM's real scheduler and block pool without a model: every step samples one token per request.

For measuring what scheduling itself costs; the one module of this room that imports vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from agentkv.integrations.vllm.scheduler import AsyncContinuumScheduler, ContinuumScheduler

MAX_MODEL_TOKENS = 4096
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 1000,
    "max_position_embeddings": MAX_MODEL_TOKENS,
}
REPLY = "I will look at the file first, since the test names it.\n" * 14 + (
    "```bash\ncd /testbed && frobnicate --all src/module.py | head -50\n```"
)
"""What every reply reads as, 900 characters; what it runs is unknown, so every rule is asked."""


SCHEDULERS: dict[tuple[str, bool], type[Scheduler]] = {
    ("stock", False): Scheduler,
    ("stock", True): AsyncScheduler,
    ("continuum", False): ContinuumScheduler,
    ("continuum", True): AsyncContinuumScheduler,
}
"""By policy and whether scheduling is asynchronous; all of ours have the same classes."""


class Loop:
    """Stands in for the engine's busy loop, which nobody runs here."""

    def __init__(self) -> None:
        self.input_queue: SimpleQueue[Any] = SimpleQueue()
        self.output_queue: SimpleQueue[Any] = SimpleQueue()


class BareEngine:
    """One scheduler, stepped by hand: `schedule`, then `update` with what it returned.

    `policy` is "stock" or one of ours, which reads replies in a thread as a server's does. `folder`
    gets the config of a model that is never loaded.
    """

    def __init__(
        self,
        folder: Path,
        policy: str,
        *,
        is_async: bool = False,
        num_blocks: int,
        block_tokens: int = 16,
        max_num_seqs: int,
        settings: dict[str, Any] | None = None,
    ) -> None:
        (folder / "config.json").write_text(json.dumps(MODEL))
        config = VllmConfig(
            scheduler_config=SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=8192,
                max_model_len=MAX_MODEL_TOKENS,
                enable_chunked_prefill=True,
                async_scheduling=is_async,
                is_encoder_decoder=False,
                watermark=0.0,
            ),
            model_config=ModelConfig(
                model=str(folder),
                dtype="float32",
                skip_tokenizer_init=True,
                max_model_len=MAX_MODEL_TOKENS,
            ),
            cache_config=CacheConfig(block_size=block_tokens, enable_prefix_caching=True),
            additional_config={
                "agentkv": {} if policy == "stock" else {**(settings or {}), "policy": policy}
            },
        )
        config.cache_config.num_gpu_blocks = num_blocks
        spec = FullAttentionSpec(
            block_size=block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(block_tokens, sha256)
        self.scheduler: Any = _scheduler_class(policy, is_async)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=num_blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=block_tokens,
            log_stats=True,
        )
        if policy != "stock":
            self.scheduler.attach(Loop())

    def add(self, job_id: str, prompt: list[int], *, max_tokens: int) -> None:
        """Add one turn of a job; the stock scheduler takes no notice of the job."""
        self.scheduler.add_request(
            Request(
                request_id=f"{job_id}-turn",
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(
                    max_tokens=max_tokens, ignore_eos=True, extra_args={"job_id": job_id}
                ),
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def schedule(self) -> Any:
        return self.scheduler.schedule()

    def sample(self, output: Any) -> ModelRunnerOutput:
        """What a model runner would return for a step: a token for each finished prefill."""
        ids = list(output.num_scheduled_tokens)
        requests = self.scheduler.requests
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[request_id].is_prefill_chunk else [7] for request_id in ids
            ],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def update(self, output: Any, sampled: ModelRunnerOutput) -> Any:
        return self.scheduler.update_from_output(output, sampled)

    def step(self) -> None:
        output = self.schedule()
        self.update(output, self.sample(output))

    def counts(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return len(self.scheduler.running), len(self.scheduler.waiting)

    def num_pinned_jobs(self) -> int:
        """Jobs pinned; 0 under the stock scheduler."""
        retention = getattr(self.scheduler, "retention", None)
        return 0 if retention is None else len(retention.pins)

    def release_pins_beyond(self, num_jobs: int) -> None:
        """End the oldest pins until `num_jobs` are left."""
        retention = getattr(self.scheduler, "retention", None)
        if retention is not None:
            for pin in list(retention.pins)[: max(0, len(retention.pins) - num_jobs)]:
                retention.release(pin.job_id)


def _scheduler_class(policy: str, is_async: bool) -> type[Scheduler]:
    if policy == "stock":
        return SCHEDULERS[policy, is_async]
    # A public method of ours: without a model there is no tokenizer.
    reads = {"decode": lambda scheduler, token_ids: REPLY}
    return type("ReadingScheduler", (SCHEDULERS["continuum", is_async],), reads)
