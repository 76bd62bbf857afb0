"""A real server of two data-parallel engines: each job stays on one, with nothing from the user."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import agentkv
from agentkv.server.process import ServerProcess
from tests.server.chat import LIMIT_S, agentkv_get, metric

pytestmark = [pytest.mark.server, pytest.mark.long, pytest.mark.timeout(1800)]

NUM_JOBS, NUM_TURNS = 8, 4
WORDS = " ".join(f"word{number}" for number in range(60))


def test_each_job_stays_on_its_engine(make_server: Callable[..., ServerProcess]) -> None:
    """Every turn after a job's first finds the whole one before in the cache of its engine.

    vLLM starts two API servers as well, and each turn may come in at either of them.
    """
    server = make_server("--data-parallel-size", "2", policy="agentkv")
    server.__enter__()

    def play(job_number: int) -> list[tuple[int, int]]:
        """Per turn its prompt tokens and how many of them were cached."""
        usage = []
        # a client of its own, so that each job has connections of its own
        client = openai.OpenAI(base_url=server.base_url, api_key="none", timeout=LIMIT_S)
        messages = [{"role": "user", "content": f"Job {job_number}: {WORDS}"}]
        with agentkv.session(client, job_id=f"job-{job_number}") as job:
            for _ in range(NUM_TURNS):
                reply = job.client.chat.completions.create(
                    model="tiny", messages=messages, max_tokens=8, temperature=0
                )
                details = reply.usage.prompt_tokens_details
                usage.append((reply.usage.prompt_tokens, details.cached_tokens or 0))
                messages += [
                    {"role": "assistant", "content": reply.choices[0].message.content},
                    {"role": "user", "content": WORDS},
                ]
            engines.append(len({each["engine"] for each in known_jobs(job.job_id)}))
        return usage

    def known_jobs(job_id: str) -> list[dict[str, Any]]:
        answer = agentkv_get(server, "jobs")
        return [each for each in answer["jobs"] if each["job_id"] == job_id]

    engines: list[int] = []
    with ThreadPoolExecutor(NUM_JOBS) as pool:
        usages = list(pool.map(play, range(NUM_JOBS)))
    assert engines == [1] * NUM_JOBS
    for usage in usages:
        for (before, _), (_, cached) in itertools.pairwise(usage):
            assert cached >= before - 32, usage  # whole blocks
    shares = [metric(server, "vllm:request_success_total", engine=str(rank)) for rank in (0, 1)]
    assert sum(shares) == NUM_JOBS * NUM_TURNS
    assert min(shares) >= NUM_TURNS, "both engines serve jobs"
    assert agentkv_get(server, "jobs")["jobs"] == []
