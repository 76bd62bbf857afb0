"""Runs made up for the figures: a queue that fills with the load, shorter where caches are kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.made_runs import write_run

PROMPTS = (92, 469, 811, 1343, 1655, 2241, 2665, 2915)
TOOLS_S = (0.1, 0.08, 0.08, 0.14, 3.5, 0.08, 0.2, 0.0)
SPEED = {"fcfs": 1.0, "continuum": 0.85, "continuum:released": 0.95, "context_serve": 0.8}
"""How long a turn takes, against fcfs; other policies 0.9."""


def made_run(
    policy: str,
    jps: float | None = 2.0,
    *,
    seed: int = 0,
    repeat: int = 0,
    num_jobs: int = 20,
    gpu: str | None = "rtx6000",
    blocks: int | None = 3000,
    capacity_jps: float = 8.0,
    **workload: Any,
) -> RunOutcome:
    rng = random.Random(f"{seed} {repeat} {jps}")
    jobs = tuple(_job(rng, number, policy, jps or 1.0, capacity_jps) for number in range(num_jobs))
    return RunOutcome(
        policy,
        {"name": "reference", "seed": seed, "jps": jps, "concurrency": None, **workload},
        jobs,
        metadata={
            "commit": "abc1234",
            "repeat": repeat,
            "versions": {"agentkv": "0.1.0"},
            "config": {"gpu": gpu, "model": "llama-3.1-8b", "blocks": blocks},
        },
    )


def _job(rng: random.Random, number: int, policy: str, jps: float, capacity: float) -> JobOutcome:
    load = min(jps / capacity, 1.6)
    gain = 1.0 + (SPEED.get(policy, 0.9) - 1.0) * max(0.0, load - 0.3) / 0.7
    at_s = arrived_s = number / jps
    turns = []
    for turn, (prompt, tool_s) in enumerate(zip(PROMPTS, TOOLS_S, strict=True)):
        wait_s = (0.05 + 0.25 * load**3 * rng.expovariate(1.0) + prompt / 12_000) * gain
        decode_s = 0.4 * (1 + 0.3 * load)
        is_lost = rng.random() < load * (0.5 if policy == "fcfs" else 0.15)
        cached = 0 if is_lost or not turn else PROMPTS[turn - 1]
        first_s, ended_s = at_s + wait_s, at_s + wait_s + decode_s
        turns.append(TurnOutcome(turn, at_s, first_s, ended_s, prompt, cached, 30, tool_s))
        at_s = ended_s + tool_s
    return JobOutcome(f"job-{number:03}", arrived_s, at_s, "done", tuple(turns), 8.0)


def write_runs(folder: Path, runs: Iterable[RunOutcome]) -> Path:
    """Each run in a folder of its own, as the commands write them."""
    for number, run in enumerate(runs):
        write_run(folder / f"run-{number:03}", run)
    return folder


def swept(
    policies: Sequence[str] = ("fcfs", "continuum", "context_serve"),
    loads: Sequence[float] = (1, 2, 5, 8, 12),
    *,
    seeds: Sequence[int] = (0, 1, 2),
    **more: Any,
) -> list[RunOutcome]:
    return [
        made_run(policy, jps, seed=seed, **more)
        for policy in policies
        for jps in loads
        for seed in seeds
    ]
