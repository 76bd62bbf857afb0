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
    workload={"workload": "reference", "jobs": 12, "concurrency": 6, "token_scale": 0.5},
    server_flags=("--block-size", "32", "--max-model-len", "2048", "--max-num-seqs", "8"),
    num_blocks=144,
    model=None,
    ready_timeout_s=600.0,
)
"""The demo model with memory for three whole jobs of the six at once.

Half of the reference's tokens, so that a run takes two minutes on two cores (prefill about 700
tokens/s, 45 ms a step of decoding, 35 s until a server is ready). Chosen with `agentkv simulate` on
a profile calibrated to such a server, where over three seeds it shows continuum's mean at 0.75 to
0.80 of fcfs's; with 65 to 176 blocks and 3 to 6 jobs at once it lies between 0.71 and 1.04.
"""

GPU = Profile(
    workload={"workload": "reference", "jps": 8.0, "duration": 90.0},
    server_flags=("--max-model-len", "4096", "--gpu-memory-utilization", "0.85"),
    num_blocks=None,
    model="meta-llama/Llama-3.1-8B-Instruct",
    ready_timeout_s=1800.0,
)
"""Source: model, flags, rate and duration of the reference experiment's A/B run."""
