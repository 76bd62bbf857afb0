"""What `agentkv compare` does unless told otherwise: on a CPU server, and on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Profile:
    """Defaults for the workload's flags, and the server flags that all policies share."""

    workload: Mapping[str, Any]
    server_flags: tuple[str, ...]
    num_blocks: int | None
    model: str | None
    ready_timeout_s: float


CPU = Profile(
    workload={
        "workload": "reference",
        "jobs": 12,
        "concurrency": 6,
        "turns": 6,
        "token_scale": 0.5,
    },
    server_flags=("--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "8"),
    num_blocks=96,
    model=None,
    ready_timeout_s=600.0,
)
"""The demo model with memory for three jobs of six, so that tools and memory pressure meet.

Measured on two cores: prefill 700 tokens/s, a step of decoding 45 ms, a start of the server 35 s;
half of the reference's tokens keep a run under two minutes.
"""

GPU = Profile(
    workload={"workload": "reference", "jps": 8.0, "duration": 90.0},
    server_flags=("--max-model-len", "4096", "--gpu-memory-utilization", "0.85"),
    num_blocks=None,
    model="meta-llama/Llama-3.1-8B-Instruct",
    ready_timeout_s=1800.0,
)
"""Source: model, flags, rate and duration of the reference experiment's A/B run."""
