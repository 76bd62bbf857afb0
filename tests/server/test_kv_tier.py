"""A KV tier on a real server of the CPU build: evicted contexts come back."""

import random
from pathlib import Path

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.cpu_tier import tier_flags
from tests.server.chat import LIMIT_S, agentkv_get, metric

pytestmark = pytest.mark.server

NUM_JOBS = 24
PROMPT_TOKENS, REPLY_TOKENS, BLOCK_TOKENS = 320, 8, 32
SCARCE = ("--num-gpu-blocks-override", "28", "--max-model-len", "512")
"""Room for two of the contexts."""
LOADED = "vllm:external_prefix_cache_hits_total"


def take_turn(server: ServerProcess, prompt: list[int], job_id: str) -> tuple[list[int], int]:
    """A greedy reply's tokens, and how many tokens of the prompt were cached."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": REPLY_TOKENS, "job_id": job_id}
    body |= {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    reply = httpx.post(f"{server.base_url}/completions", json=body, timeout=LIMIT_S)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], cached


def play(server: ServerProcess) -> tuple[list[list[int]], list[int]]:
    """Two turns of each job, all first ones before the second ones: replies, and cached tokens of
    the second ones."""
    rng = random.Random(1)
    prompts = [[rng.randrange(100, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_JOBS)]
    replies, cached = [], []
    for turn in range(2):
        for job, prompt in enumerate(prompts):
            reply, num_cached = take_turn(server, prompt, f"tier-{job}")
            replies.append(reply)
            cached += [num_cached] * turn
            prompt += [*reply, 7]
    return replies, cached


def check(server: ServerProcess, other: ServerProcess, *, most_resident: int) -> None:
    """Every second turn finds its whole first turn, the statistics learn it, and another server,
    without a tier and with ample memory, says the same."""
    loaded = metric(server, LOADED)
    replies, cached = play(server)
    assert replies == play(other)[0]
    context_tokens = (PROMPT_TOKENS + REPLY_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    assert cached == [context_tokens] * NUM_JOBS
    assert metric(server, LOADED) - loaded >= (NUM_JOBS - most_resident) * context_tokens
    assert agentkv_get(server, "stats")["learned"]["loaded_share"] > 0.9


def test_evicted_contexts_come_back_with_the_same_output(
    scarce_server: ServerProcess, tiny_continuum_server: ServerProcess
) -> None:
    """By the tier, over a fast link."""
    check(scarce_server, tiny_continuum_server, most_resident=12)


@pytest.mark.long
def test_a_slow_link_brings_back_the_same(
    server_pool: ServerPool, tiny_fcfs_server: ServerProcess, tiny_model_dir: Path
) -> None:
    """A link of 5 MB a second, and memory for two of the contexts."""
    link = tier_flags(0.1, link_gb_per_s=0.005, link_latency_ms=20.0)
    flags = (*TINY_ARGS, *SCARCE, *link)
    server = server_pool.get(tiny_model_dir, *flags, policy="agentkv")
    check(server, tiny_fcfs_server, most_resident=3)
