"""The figures of `catalog.toml`: GPUs, models, and what a server achieves of a card's peaks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources


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
    """The sizes of a decoder-only transformer; weights and KV have 16 bits."""

    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_context_tokens: int
    source: str
    dtype_bytes: int = 2


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
