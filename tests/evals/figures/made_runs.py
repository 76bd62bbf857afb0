"""Runs made up for the figures: a queue that fills with the load, shorter where caches are kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from tests.evals.made_runs import run, write_run

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
    **workload: Any,
) -> RunOutcome:
    chance = random.Random(f"{seed} {repeat} {jps}")
    load = jps or 1.0
    jobs = [_job(chance, number / load, load / 8, policy) for number in range(num_jobs)]
    return run(
        *(replace(job, job_id=f"job-{number:03}") for number, job in enumerate(jobs)),
        policy=policy,
        workload={"name": "reference", "seed": seed, "jps": jps, "concurrency": None, **workload},
        server={},
        metadata={
            "commit": "abc1234",
            "repeat": repeat,
            "versions": {"agentkv": "0.1.0"},
            "config": {"gpu": gpu, "model": "llama-3.1-8b", "blocks": blocks},
        },
    )


def _job(chance: random.Random, arrived_s: float, load: float, policy: str) -> JobOutcome:
    """Eight turns that queue the longer, and find the less in the cache, the higher the load."""
    at_s, turns = arrived_s, []
    for number, (prompt, tool_s) in enumerate(zip(PROMPTS, TOOLS_S, strict=True)):
        wait_s = (0.05 + load**3 * chance.expovariate(1.0) + prompt / 12_000) * SPEED.get(
            policy, 0.9
        )
        is_lost = chance.random() < load / (2 if policy == "fcfs" else 6)
        cached = 0 if is_lost or not number else PROMPTS[number - 1]
        ended_s = at_s + wait_s + 0.4
        turns.append(TurnOutcome(number, at_s, at_s + wait_s, ended_s, prompt, cached, 30, tool_s))
        at_s = ended_s + tool_s
    return JobOutcome("", arrived_s, at_s, "done", tuple(turns), 8.0)


def write_runs(folder: Path, runs: Iterable[RunOutcome]) -> Path:
    """Each run in a folder of its own, as the commands write them."""
    for number, each in enumerate(runs):
        write_run(folder / f"run-{number:03}", each)
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
