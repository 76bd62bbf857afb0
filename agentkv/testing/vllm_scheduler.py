"""vLLM's real Scheduler and KVCacheManager, built without a server, a model or a GPU.

With dram_tier.py the only module of this room that imports vLLM; names are of vLLM 0.32.0.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import (
    CacheConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from agentkv.integrations.vllm.engine.scheduler import AsyncRetainingScheduler, RetainingScheduler

VLLM_VERSION = str(vllm.__version__)
BlockHasher = Callable[[Any], list[Any]]
"""The hashes of a request's full blocks beyond those it has."""


@dataclass(frozen=True, slots=True)
class SchedulerShape:
    """What a scheduler is built from; `settings` are agentkv's, None for the stock scheduler.

    `connector` is the dotted path of a KV connector class, None for none.
    """

    num_blocks: int
    block_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_tokens: int
    settings: dict[str, Any] | None = None
    is_async: bool = False
    log_stats: bool = False
    connector: str | None = None


def build_scheduler(
    shape: SchedulerShape,
    folder: Path,
    *,
    clock: Callable[[], float] | None = None,
    decode: Callable[[list[int]], str] | None = None,
) -> Any:
    """A scheduler of this shape; `folder` gets the config of a model that is never loaded.

    `clock` and `decode` replace those of agentkv's schedulers; the stock one has neither.
    """
    config = _config(shape, _write_model(folder, shape.max_model_tokens))
    config.cache_config.num_gpu_blocks = shape.num_blocks
    spec = FullAttentionSpec(
        block_size=shape.block_tokens, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return _scheduler_class(shape, clock, decode)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=shape.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_tokens,
        log_stats=shape.log_stats,
    )


def _scheduler_class(
    shape: SchedulerShape,
    clock: Callable[[], float] | None,
    decode: Callable[[list[int]], str] | None,
) -> Callable[..., Any]:
    if shape.settings is None:
        stock: Callable[..., Any] = AsyncScheduler if shape.is_async else Scheduler
        return stock
    base: Any = AsyncRetainingScheduler if shape.is_async else RetainingScheduler
    given: dict[str, Any] = {"num_steps": _num_steps}
    if clock is not None:
        given["clock"] = lambda _: clock()
    if decode is not None:
        given["decode"] = lambda _, token_ids: decode(token_ids)
    return type("VirtualScheduler", (base,), given)


def _num_steps(_: Any, output: SchedulerOutput) -> int:
    """A jump hands each request the tokens of all its steps, all but the first as drafts."""
    return 1 + max(map(len, output.scheduled_spec_decode_tokens.values()), default=0)


def _config(shape: SchedulerShape, folder: Path) -> VllmConfig:
    transfer = None
    if shape.connector is not None:
        module, _, name = shape.connector.rpartition(".")
        transfer = KVTransferConfig(
            kv_connector=name, kv_connector_module_path=module, kv_role="kv_both"
        )
    return VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_tokens,
            enable_chunked_prefill=True,
            async_scheduling=shape.is_async,
            is_encoder_decoder=False,
        ),
        model_config=ModelConfig(
            model=str(folder),
            dtype="float32",
            seed=0,
            skip_tokenizer_init=True,
            max_model_len=shape.max_model_tokens,
        ),
        cache_config=CacheConfig(block_size=shape.block_tokens, enable_prefix_caching=True),
        kv_transfer_config=transfer,
        additional_config={"agentkv": shape.settings or {}},
    )


def _write_model(folder: Path, max_model_tokens: int) -> Path:
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 1000,
        "max_position_embeddings": max_model_tokens,
    }
    (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    return folder


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int,
    tags: dict[str, Any] | None,
    block_hasher: BlockHasher,
) -> Request:
    """A request as the engine gets it; `tags` are agentkv's fields in `vllm_xargs`."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=tags),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=block_hasher,
    )


def sha256_hasher(block_tokens: int) -> BlockHasher:
    """vLLM's own default: hashes of the tokens themselves."""
    init_none_hash(sha256)
    hasher: BlockHasher = get_request_block_hasher(block_tokens, sha256)
    return hasher


def runner_output(
    request_ids: Sequence[str],
    sampled: list[list[int]],
    *,
    loaded: Iterable[str] = (),
) -> ModelRunnerOutput:
    """What a model runner would return: a step's tokens, and whose KV has been loaded by now."""
    transfers = KVConnectorOutput(finished_recving=set(loaded)) if loaded else None
    return ModelRunnerOutput(
        req_ids=list(request_ids),
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=sampled,
        kv_connector_output=transfers,
    )


def quiet_vllm() -> None:
    """Keep vLLM's own logging to errors: a simulation builds several schedulers."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
