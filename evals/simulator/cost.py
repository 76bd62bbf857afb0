"""How long one step of the engine takes: a roofline from public figures, or a fitted line.

The figures of `catalog.toml` are GPUs, models, and what a server achieves of a card's peaks. Knows
batches as counts of tokens; nothing of requests, blocks or vLLM.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Annotated

from pydantic import ConfigDict, Field


@dataclass(frozen=True, slots=True)
class GPU:
    """One card: GiB, GB (10^9 bytes) per second, TFLOP per second."""

    memory_gib: float
    bandwidth_gb_s: float
    tflops: float
    pcie_gb_s: float
    source: str


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only model; weights and KV have 16 bits.

    `num_state_layers` of its layers are recurrent and keep a state of `state_bytes` each. A token
    uses `expert_share` of the `num_expert_parameters`, which are among the parameters.
    """

    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_context_tokens: int
    source: str
    dtype_bytes: int = 2
    num_state_layers: int = 0
    state_bytes: int = 0
    num_expert_parameters: int = 0
    expert_share: float = 0.0

    @property
    def num_attention_layers(self) -> int:
        return self.num_layers - self.num_state_layers


_TABLES = tomllib.loads(
    resources.files(__package__).joinpath("catalog.toml").read_text(encoding="utf-8")
)
GPUS = {name: GPU(**row) for name, row in _TABLES["gpus"].items()}
MODELS = {name: ModelShape(**row) for name, row in _TABLES["models"].items()}


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a server achieves with a card: shares of its peaks, and fixed times."""

    bandwidth_share: float
    compute_share: float
    step_s: float
    sequence_s: float
    request_s: float
    overhead_gib: float
    parallel_share: float
    all_reduce_s: float


ACHIEVED = Achieved(**_TABLES["achieved"])

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default. Source: vllm/config/cache.py (0.32.0)."""
BLOCK_TOKENS = 16
"""vLLM's default on CUDA. Source: vllm/config/cache.py (0.32.0)."""
BIG_MEMORY_GIB = 70.0
BIG_BATCH_TOKENS, BIG_NUM_SEQS = 8192, 1024
BATCH_TOKENS, NUM_SEQS = 2048, 256
"""vLLM's defaults for an API server: the big ones from 70 GiB of memory on, but not on A100.
Source: EngineArgs.get_batch_defaults (vllm/engine/arg_utils.py, 0.32.0)."""


@dataclass(slots=True)
class StepBatch:
    """What one step computes, added up over its requests."""

    num_prefills: int = 0
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """(query, key) pairs of the prefills' attention, per head."""
    prefill_context_tokens: int = 0
    num_decodes: int = 0
    context_tokens: int = 0
    """Tokens whose KV the decodes read."""

    @classmethod
    def of_prefill(cls, new_tokens: int, past_tokens: int = 0) -> StepBatch:
        batch = cls()
        batch.add_prefill(new_tokens, past_tokens)
        return batch

    @classmethod
    def of_decodes(cls, num_requests: int, past_tokens: int) -> StepBatch:
        """Decodes behind contexts of equal length."""
        return cls(num_decodes=num_requests, context_tokens=num_requests * (past_tokens + 1))

    def add_prefill(self, new_tokens: int, past_tokens: int) -> None:
        """A chunk of a prompt behind `past_tokens` that are in the cache."""
        self.num_prefills += 1
        self.prefill_tokens += new_tokens
        self.prefill_pairs += new_tokens * past_tokens + new_tokens * (new_tokens + 1) // 2
        self.prefill_context_tokens += past_tokens + new_tokens

    def add_decode(self, past_tokens: int) -> None:
        """One token behind `past_tokens` that are in the cache."""
        self.num_decodes += 1
        self.context_tokens += past_tokens + 1


@dataclass(frozen=True, slots=True)
class Roofline:
    """Each part of a step takes the longer of its FLOPs and its bytes, at the achieved rates.

    Parts: the weights' products (all tokens; the weights are read once, of experts those that any
    token uses, if each chooses by chance), the attention of the prefills, that of the decodes (each
    reads the KV of its context), and recurrent states, which each request reads and writes. Rates
    are bytes and FLOP per second, over all cards.
    """

    weight_bytes: float
    kv_token_bytes: float
    token_flop: float
    pair_flop: float
    bytes_per_s: float
    flop_per_s: float
    fixed_s: float
    sequence_s: float
    expert_bytes: float = 0.0
    expert_share: float = 0.0
    state_bytes: float = 0.0

    def step_s(self, batch: StepBatch) -> float:
        """Seconds one step with this batch takes."""
        num_tokens = batch.prefill_tokens + batch.num_decodes
        used_bytes = self.weight_bytes
        used_bytes += self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** num_tokens)
        products_s = max(
            self.token_flop * num_tokens / self.flop_per_s, used_bytes / self.bytes_per_s
        )
        prefills_s = max(
            self.pair_flop * batch.prefill_pairs / self.flop_per_s,
            self.kv_token_bytes * batch.prefill_context_tokens / self.bytes_per_s,
        )
        decodes_s = max(
            self.pair_flop * batch.context_tokens / self.flop_per_s,
            self.kv_token_bytes * batch.context_tokens / self.bytes_per_s,
        )
        num_requests = batch.num_prefills + batch.num_decodes
        states_s = 2.0 * self.state_bytes * num_requests / self.bytes_per_s
        host_s = self.fixed_s + self.sequence_s * num_requests
        return products_s + prefills_s + decodes_s + states_s + host_s


def roofline(gpu: GPU, model: ModelShape, num_gpus: int) -> Roofline:
    """The roofline of a model on `num_gpus` equal cards, tensor parallel."""
    is_parallel = num_gpus > 1
    cards = num_gpus * (ACHIEVED.parallel_share if is_parallel else 1.0)
    num_shared = model.num_parameters - model.num_expert_parameters
    num_used = num_shared + model.expert_share * model.num_expert_parameters
    return Roofline(
        weight_bytes=num_shared * model.dtype_bytes,
        kv_token_bytes=kv_token_bytes(model),
        # A multiplication and an addition per weight; per pair, of the query with the key and of
        # the score with the value.
        token_flop=2.0 * num_used,
        pair_flop=4.0 * model.num_attention_layers * model.num_heads * model.head_size,
        bytes_per_s=gpu.bandwidth_gb_s * 1e9 * ACHIEVED.bandwidth_share * cards,
        flop_per_s=gpu.tflops * 1e12 * ACHIEVED.compute_share * cards,
        fixed_s=ACHIEVED.step_s + is_parallel * model.num_layers * ACHIEVED.all_reduce_s,
        sequence_s=ACHIEVED.sequence_s,
        expert_bytes=model.num_expert_parameters * model.dtype_bytes,
        expert_share=model.expert_share,
        state_bytes=model.num_state_layers * model.state_bytes,
    )


def kv_token_bytes(model: ModelShape) -> int:
    """Bytes of KV per token: K and V of every layer with attention."""
    return 2 * model.num_attention_layers * model.num_kv_heads * model.head_size * model.dtype_bytes


_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class FittedLine:
    """A step's seconds as a sum over what it computes, fitted to a running server.

    The bounds hold where it is read from a profile.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    fixed_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    prefill_token_s: _Seconds
    prefill_pair_s: _Seconds
    decode_s: _Seconds
    context_token_s: _Seconds

    def step_s(self, batch: StepBatch) -> float:
        """Seconds one step with this batch takes."""
        return (
            self.fixed_s
            + self.prefill_token_s * batch.prefill_tokens
            + self.prefill_pair_s * batch.prefill_pairs
            + self.decode_s * batch.num_decodes
            + self.context_token_s * batch.context_tokens
        )


CostModel = Roofline | FittedLine
