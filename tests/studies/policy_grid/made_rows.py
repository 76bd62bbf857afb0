"""Rows of a study as if it had been played."""

from __future__ import annotations

from typing import Any

from studies.policy_grid.findings import RATIO_KEYS

CONFIG: dict[str, Any] = {
    "workload": "swebench",
    "num_jobs": 80,
    "max_turns": 20,
    "trace": None,
    "part": "all",
    "machine": {"name": "h100", "model": "llama-3.1-8b"},
}


def row(
    policy: str,
    seconds: float,
    *,
    seed: int = 0,
    load: str = "1x",
    pool_blocks: int = 3000,
    tools: str = "recorded",
    recomputed_share: float = 0.5,
    preemptions: int = 0,
    error: str | None = None,
    **values: Any,
) -> dict[str, Any]:
    """A unit in which every duration was `seconds`, but for those given."""
    place = {"tools": tools, "pool_blocks": pool_blocks, "load": load, "seed": seed}
    found = {
        **dict.fromkeys(RATIO_KEYS, seconds),
        "jobs": 80,
        "completed": 80,
        "hit_rate": 0.5,
        "preemptions": preemptions,
        "recomputed_tokens": int(1000 * recomputed_share),
        "counters": {"computed_tokens": 1000},
        **values,
    }
    return {
        "unit": f"{place} {policy}",
        **place,
        "jps": 0.1,
        "multiple": {"light": 0.1, "1x": 1.0, "2x": 2.0}.get(load),
        "concurrency": None,
        "policy": policy,
        "one_x": {"memory_jps": 0.1, "compute_jps": 0.2, "one_x_jps": 0.1, "num_resident": 4.8},
        **({} if error else found),
        "wall_s": 4.0,
        "cpu_s": 2.0,
        "error": error,
        "commit": "abc",
        "config": CONFIG,
    }
