"""A KV tier on a real server of the CPU build, vLLM's and LMCache: evicted contexts come back."""

import importlib.util
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agentkv.server.process import HTTPProcess, ServerProcess, free_port
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


CHUNK_TOKENS = 64
CONNECTOR = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@pytest.fixture
def cache_port(tmp_path: Path) -> Iterator[int]:
    """The port of an LMCache server with 1 GB of DRAM: a process of its own, from this Python."""
    port, http_port = free_port(), free_port()
    server = HTTPProcess(
        [
            *(sys.executable, "-m", "lmcache.v1.multiprocess.http_server"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--http-host", "127.0.0.1", "--http-port", str(http_port)),
            *("--l1-size-gb", "1", "--eviction-policy", "LRU"),
            *("--chunk-size", str(CHUNK_TOKENS), "--supported-transfer-mode", "engine_driven"),
            "--disable-observability",
        ],
        name="the LMCache server",
        port=http_port,
        health_path="/healthcheck",
        log_path=tmp_path / "lmcache.log",
    )
    with server:
        yield port


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("lmcache") is None,
    reason="needs `pip install --no-deps lmcache` in an environment with vLLM",
)
def test_evicted_contexts_come_back_from_lmcache_with_the_same_output(
    cache_port: int,
    server_pool: ServerPool,
    tiny_fcfs_server: ServerProcess,
    tiny_model_dir: Path,
) -> None:
    """Second turns find the full chunks of their first ones under our policy, and say what stock
    without a tier says."""
    where = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": cache_port}
    extra = {**where, "lmcache.mp.save_decode_cache": True}
    connector = json.dumps({**CONNECTOR, "kv_connector_extra_config": extra})
    flags = (*TINY_ARGS, *SCARCE, "--kv-transfer-config", connector)
    server = server_pool.get(tiny_model_dir, *flags, policy="agentkv")
    replies, cached = play(server)
    assert replies == play(tiny_fcfs_server)[0]
    context_tokens = (PROMPT_TOKENS + REPLY_TOKENS) // CHUNK_TOKENS * CHUNK_TOKENS
    assert min(cached) >= context_tokens
    assert metric(server, LOADED) >= (NUM_JOBS - 3) * context_tokens
    assert agentkv_get(server, "stats")["learned"]["loaded_share"] > 0.9
