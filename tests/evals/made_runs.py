"""Runs made by hand, for the tests of what is done with runs."""

from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from agentkv.evals.outcomes import JobOutcome, RunOutcome, TurnOutcome
from agentkv.evals.rows import RunWriter, row_facts


def turn(number: int = 0, *, sent_s: float = 0.0, **fields: Any) -> TurnOutcome:
    """A turn of 1 s: 0.25 s to its first token, 0.75 s of decoding."""
    values = {
        "first_token_s": sent_s + 0.25,
        "ended_s": sent_s + 1.0,
        "prompt_tokens": 100 * (number + 1),
        "cached_tokens": 96 * number,
        "output_tokens": 10,
        "tool_s": 0.0,
    }
    return TurnOutcome(turn=number, sent_s=sent_s, **(values | fields))


def job(
    job_id: str = "a", *, start_s: float = 0.0, num_turns: int = 2, **fields: Any
) -> JobOutcome:
    """A job whose turns follow each other with 0.5 s of tool between them."""
    turns = tuple(
        turn(number, sent_s=start_s + 1.5 * number, tool_s=0.5 if number < num_turns - 1 else 0.0)
        for number in range(num_turns)
    )
    values: dict[str, Any] = {
        "arrived_s": start_s,
        "ended_s": turns[-1].ended_s,
        "status": "done",
        "turns": turns,
    }
    return JobOutcome(job_id=job_id, **(values | fields))


def run(*jobs: JobOutcome, policy: str = "fcfs", **fields: Any) -> RunOutcome:
    values: dict[str, Any] = {
        "workload": {"name": "reference", "seed": 7, "jps": 2.0, "concurrency": None},
        "server": {"preemptions": 3},
        "metadata": {"repeat": 0, "commit": "abc", "versions": {"agentkv": "0"}, "config": {}},
    }
    return RunOutcome(policy=policy, jobs=jobs, **(values | fields))


def write_run(folder: Path, made: RunOutcome, *, force: bool = False) -> Path:
    """Write the run as the commands do."""
    facts = row_facts(made.policy, made.workload, made.metadata)
    with RunWriter(folder, facts, force=force) as files:
        for each in made.jobs:
            files.add_job(each)
        files.finish(made)
    return folder


def made_run(
    policy: str,
    jps: float | None = 2.0,
    *,
    seed: int = 0,
    num_jobs: int = 20,
    gpu: str | None = "rtx6000",
    blocks: int | None = 3000,
    **workload: Any,
) -> RunOutcome:
    """A run to draw, whose jobs take longer under a load, with the seed and under fcfs."""
    job_s = (2.5 + 0.1 * (jps or 1.0) + 0.01 * seed) * (1.0 if policy == "fcfs" else 0.8)
    starts_s = [number / (jps or 1.0) for number in range(num_jobs)]
    return run(
        *(job(f"job-{at_s:07.3f}", start_s=at_s, ended_s=at_s + job_s) for at_s in starts_s),
        policy=policy,
        workload={"name": "reference", "seed": seed, "jps": jps, "concurrency": None, **workload},
        server={},
        metadata={
            "commit": "abc1234",
            "repeat": 0,
            "versions": {"agentkv": "0.1.0"},
            "config": {"gpu": gpu, "model": "llama-3.1-8b", "blocks": blocks},
        },
    )


def swept(
    policies: Sequence[str] = ("fcfs", "continuum", "context_serve"),
    loads: Sequence[float] = (1, 2, 5, 8, 12),
    *,
    seeds: Sequence[int] = (0, 1, 2),
    **more: Any,
) -> list[RunOutcome]:
    cells = product(policies, loads, seeds)
    return [made_run(policy, jps, seed=seed, **more) for policy, jps, seed in cells]


def write_runs(folder: Path, runs: Iterable[RunOutcome]) -> Path:
    """Each run in a folder of its own, as the commands write them."""
    for number, each in enumerate(runs):
        write_run(folder / f"run-{number:03}", each)
    return folder
