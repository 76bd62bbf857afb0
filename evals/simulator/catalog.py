"""The GPUs and models that can be named: public figures, each with its source, and nothing else.

`memory_gib` is what CUDA reports, `bandwidth_gb_s` and `tflops` are the makers' peaks (dense, 16
bit in, 32 bit accumulated); what a server achieves of them is ACHIEVED below.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """What of a decoder-only transformer decides its memory and time; 16-bit weights and KV."""

    num_parameters: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_context_tokens: int
    source: str
    dtype_bytes: int = 2


PCIE3_GB_S, PCIE4_GB_S = 12.0, 25.0
"""What copies from pinned memory reach on 16 lanes, of 15.8 and 31.5 GB/s; PCIe 5 is taken as 4,
the end of the 12 to 25 GB/s that KV offloading is reported to reach."""

GPUS = {
    "rtx-6000": GPU(
        23.65,
        672.0,
        130.5,
        PCIE3_GB_S,
        "NVIDIA Quadro RTX 6000 data sheet (Turing, 24 GB GDDR6, FP16 tensor cores)",
    ),
    "a100-40": GPU(
        39.4,
        1555.0,
        312.0,
        PCIE4_GB_S,
        "NVIDIA A100 Tensor Core GPU data sheet (40 GB HBM2)",
    ),
    "l40s": GPU(
        44.5,
        864.0,
        362.0,
        PCIE4_GB_S,
        "NVIDIA L40S data sheet (48 GB GDDR6 with ECC; 362.05 TFLOPS without sparsity)",
    ),
    "rtx-5090": GPU(
        31.34,
        1792.0,
        209.5,
        PCIE4_GB_S,
        "NVIDIA RTX Blackwell GPU architecture paper; memory as the reference experiment saw it",
    ),
    "h100": GPU(
        79.1,
        3350.0,
        989.4,
        PCIE4_GB_S,
        "NVIDIA H100 Tensor Core GPU data sheet (SXM5, 80 GB HBM3)",
    ),
    "h200": GPU(
        139.8,
        4800.0,
        989.4,
        PCIE4_GB_S,
        "NVIDIA H200 Tensor Core GPU data sheet (SXM, 141 GB HBM3e)",
    ),
}

MODELS = {
    "llama-3.1-8b": ModelShape(
        8_030_261_248,
        32,
        32,
        8,
        128,
        131_072,
        "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct, config.json",
    ),
    "llama-3.1-70b": ModelShape(
        70_553_706_496,
        80,
        64,
        8,
        128,
        131_072,
        "https://huggingface.co/meta-llama/Llama-3.1-70B-Instruct, config.json",
    ),
    "qwen3-8b": ModelShape(
        8_190_735_360,
        36,
        32,
        8,
        128,
        40_960,
        "https://huggingface.co/Qwen/Qwen3-8B, config.json",
    ),
    "qwen3-32b": ModelShape(
        32_762_123_264,
        64,
        64,
        8,
        128,
        40_960,
        "https://huggingface.co/Qwen/Qwen3-32B, config.json",
    ),
    "smollm2-135m": ModelShape(
        134_515_008,
        30,
        9,
        3,
        64,
        8192,
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json",
    ),
}


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a server gets out of a card: shares of its peaks, and fixed times."""

    bandwidth_share: float
    compute_share: float
    step_s: float
    sequence_s: float
    request_s: float
    overhead_gib: float
    parallel_share: float
    all_reduce_s: float


ACHIEVED = Achieved(
    # These five reproduce turns 2 to 5 of the reference's single job on an RTX 5090 within 6%
    # (tests/evals/simulator/test_cost.py). Its decode alone, 12 ms a token, gives the share of
    # the bandwidth and the step's fixed cost; the share of the FLOPs is the usual one for prefill
    # of a few hundred to a few thousand tokens.
    bandwidth_share=0.80,
    compute_share=0.70,
    step_s=0.001,
    sequence_s=5e-6,
    request_s=0.005,
    # Peak activation 1.01 GiB, 0.09 other, and the rest of what the reference measured as taken
    # (16.09 GiB) beside 14.96 GiB of weights. Larger batches take more.
    overhead_gib=1.13,
    # Tensor parallelism: what is left of each card's share, and two all-reduces a layer of about
    # 10 microseconds over NVLink. Assumed; calibrate where it matters.
    parallel_share=0.9,
    all_reduce_s=20e-6,
)

GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default. Source: vllm/config/cache.py (0.32.0)."""
BLOCK_TOKENS = 16
"""vLLM's default on CUDA. Source: vllm/config/cache.py (0.32.0)."""
BIG_MEMORY_GIB = 70.0
BIG_BATCH_TOKENS, BIG_NUM_SEQS = 8192, 1024
BATCH_TOKENS, NUM_SEQS = 2048, 256
"""vLLM's defaults for an API server: the big ones from 70 GiB of memory on, but not on A100.
Source: EngineArgs.get_batch_defaults (vllm/engine/arg_utils.py, 0.32.0)."""
