"""vLLM's real Scheduler and KVCacheManager without a server, a model or a GPU.

One builder for the simulator, this repository's tests and the cost benchmarks; names are of vLLM
0.32.0. The caller steps the scheduler and plays the model runner with `runner_output`.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import (
    CacheConfig,
    KVEventsConfig,
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
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from agentkv.integrations.vllm.engine.scheduler import (
    AsyncRetainingScheduler,
    RetainingScheduler,
)

VLLM_VERSION = str(vllm.__version__)
BlockHasher = Callable[[Any], list[Any]]
"""Returns the hashes of a request's full blocks beyond those it has."""


@dataclass(frozen=True, slots=True)
class SchedulerShape:
    """The configuration of a scheduler; `settings` are agentkv's, None for vLLM's own scheduler.

    `connector` holds the fields of a KVTransferConfig. With `window_tokens` the model has a layer
    with such a sliding window, too: a second group of KV blocks. With `num_state_groups` it has as
    many groups of recurrent layers, in vLLM's `align` mode; `match_tokens` is its
    `--prefix-match-unit`. With `has_kv_events` it hands vLLM's KV events to its
    `kv_event_publisher`, which drops them.
    """

    num_blocks: int
    block_tokens: int = 16
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_tokens: int = 4096
    window_tokens: int | None = None
    num_state_groups: int = 0
    match_tokens: int | None = None
    settings: Mapping[str, Any] | None = None
    connector: Mapping[str, Any] | None = None
    is_async: bool = False
    has_kv_events: bool = False
    log_stats: bool = False


def build_scheduler(
    shape: SchedulerShape,
    *,
    clock: Callable[[], float] | None = None,
    decode: Callable[[list[int]], str] | None = None,
    policy_class: Callable[..., Any] | None = None,
    scheduler_class: Callable[..., Any] | None = None,
) -> Any:
    """Build a scheduler: vLLM's own, one of agentkv's, or `scheduler_class`.

    `clock`, `decode` and `policy_class` replace the clock, the tokenizer and the rules of agentkv's
    schedulers; vLLM's own has none of them.
    """
    config = _config(shape)
    config.cache_config.num_gpu_blocks = shape.num_blocks
    build = scheduler_class or _scheduler_class(shape, clock, decode, policy_class)
    # vLLM's default: of a prompt only the state, or the window, of its end stays in the cache
    kept: dict[str, Any] = {"prefix_cache_retention_interval": 0} if shape.num_state_groups else {}
    return build(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=shape.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=_cache_groups(shape),
            **kept,
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=shape.block_tokens,
        hash_block_size=shape.match_tokens,
        log_stats=shape.log_stats,
    )


def _cache_groups(shape: SchedulerShape) -> list[KVCacheGroupSpec]:
    layer = {
        "block_size": shape.block_tokens,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": torch.float32,
    }
    groups = [KVCacheGroupSpec(["layer"], FullAttentionSpec(**layer))]
    if shape.window_tokens is not None:
        window = SlidingWindowSpec(**layer, sliding_window=shape.window_tokens)
        groups.append(KVCacheGroupSpec(["window"], window))
    for number in range(shape.num_state_groups):
        state = MambaSpec(
            block_size=shape.block_tokens,
            shapes=((2 * shape.block_tokens,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
        )
        groups.append(KVCacheGroupSpec([f"state-{number}"], state))
    return groups


def _scheduler_class(
    shape: SchedulerShape,
    clock: Callable[[], float] | None,
    decode: Callable[[list[int]], str] | None,
    policy_class: Callable[..., Any] | None,
) -> Callable[..., Any]:
    if shape.settings is None:
        stock: Callable[..., Any] = AsyncScheduler if shape.is_async else Scheduler
        return stock
    base: Any = AsyncRetainingScheduler if shape.is_async else RetainingScheduler
    methods: dict[str, Any] = {"num_steps": _num_steps}
    if clock is not None:
        methods["monotonic"] = lambda _: clock()
    if decode is not None:
        methods["decode"] = lambda _, token_ids: decode(token_ids)
    if policy_class is not None:
        methods["make_policy"] = lambda _, *args: policy_class(*args)
    return type("ModelFreeScheduler", (base,), methods)


def _num_steps(_: Any, output: SchedulerOutput) -> int:
    """Steps of an output: all tokens of a request but the first may be handed over as drafts."""
    return 1 + max(map(len, output.scheduled_spec_decode_tokens.values()), default=0)


def write_model_config(folder: Path, max_model_tokens: int = 4096) -> Path:
    """Write the config of a small Llama, whose weights are never loaded, into `folder`."""
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


@cache
def _model_config(max_model_tokens: int) -> ModelConfig:
    """Read once: transformers takes longer for it than a scheduler takes to be built."""
    with tempfile.TemporaryDirectory(prefix="agentkv-scheduler-") as folder:
        return ModelConfig(
            model=str(write_model_config(Path(folder), max_model_tokens)),
            dtype="float32",
            seed=0,
            skip_tokenizer_init=True,
            max_model_len=max_model_tokens,
        )


def _config(shape: SchedulerShape) -> VllmConfig:
    return VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_tokens,
            enable_chunked_prefill=True,
            async_scheduling=shape.is_async,
            is_encoder_decoder=False,
        ),
        model_config=deepcopy(_model_config(shape.max_model_tokens)),
        cache_config=CacheConfig(
            block_size=shape.block_tokens,
            enable_prefix_caching=True,
            mamba_cache_mode="align" if shape.num_state_groups else "none",
        ),
        kv_transfer_config=KVTransferConfig(**shape.connector) if shape.connector else None,
        kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        if shape.has_kv_events
        else None,
        additional_config={"agentkv": dict(shape.settings or {})},
    )


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    block_hasher: BlockHasher,
    tags: dict[str, Any] | None = None,
    priority: int = 0,
    cache_salt: str | None = None,
    **sampling: Any,
) -> Request:
    """A request as the engine gets it.

    `tags` are agentkv's fields in `vllm_xargs`, `sampling` those of vLLM's SamplingParams.
    """
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(ignore_eos=True, extra_args=tags, **sampling),
        pooling_params=None,
        arrival_time=0.0,
        block_hasher=block_hasher,
        cache_salt=cache_salt,
        priority=priority,
    )


def sha256_hasher(block_tokens: int) -> BlockHasher:
    """vLLM's default block hasher, which hashes the tokens themselves."""
    init_none_hash(sha256)
    hasher: BlockHasher = get_request_block_hasher(block_tokens, sha256)
    return hasher


def take_tokens_together(scheduler: Any) -> None:
    """Let a synchronous scheduler append all tokens that a step sampled for a request at once.

    vLLM appends one after the other and looks for the end after each; the same comes of it where
    only the last can be the end. Wraps Scheduler._update_request_with_output (scheduler.py:2493).
    """
    take = scheduler._update_request_with_output

    def take_all(request: Request, token_ids: list[int], *args: Any, **options: Any) -> Any:
        if len(token_ids) > 1:
            request.append_output_token_ids(token_ids[:-1])
        _, is_stopped = take(request, token_ids[-1:], *args, **options)
        return token_ids, is_stopped

    scheduler._update_request_with_output = take_all


def runner_output(
    request_ids: Sequence[str],
    sampled: list[list[int]],
    *,
    loaded: Iterable[str] = (),
    transfers: KVConnectorOutput | None = None,
) -> ModelRunnerOutput:
    """A model runner's output: the tokens of a step, and the requests whose KV has been loaded.

    `transfers` says more of the loads than `loaded` can.
    """
    if transfers is None and loaded:
        # A set of strings would be read in an order that differs from process to process.
        ordered: Any = dict.fromkeys(loaded).keys()
        transfers = KVConnectorOutput(finished_recving=ordered)
    return ModelRunnerOutput(
        req_ids=list(request_ids),
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=sampled,
        kv_connector_output=transfers,
    )


def quiet_vllm() -> None:
    """Limit vLLM's logging to errors."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
