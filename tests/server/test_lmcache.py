"""LMCache as the KV tier of a real server of the CPU build, where the package is installed.

It runs as a process of its own, from this Python: see docs/how-to/keep-kv-in-dram.md.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentkv.server.process import HTTPProcess, ServerProcess, free_port
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import agentkv_get, metric
from tests.server.test_kv_tier import LOADED, NUM_JOBS, PROMPT_TOKENS, REPLY_TOKENS, SCARCE, play

pytestmark = [
    pytest.mark.server,
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("lmcache") is None,
        reason="needs `pip install --no-deps lmcache` in an environment with vLLM",
    ),
]

CHUNK_TOKENS = 64
CONNECTOR = {
    "kv_connector": "LMCacheMPConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


@pytest.fixture
def cache_port(tmp_path: Path) -> Iterator[int]:
    """The port of an LMCache server with 1 GB of DRAM."""
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
