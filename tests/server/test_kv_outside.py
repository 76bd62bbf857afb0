"""What a real server tells the outside of its KV: KV events over ZMQ, and frees on a socket."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq
from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch

from agentkv.listeners import KVFree, follow
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import LIMIT_S, agentkv_get, metric, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long]

BLOCK_TOKENS = 32
QUIET_MS = 1000
"""Without an event for that long, all that happened has been published."""


class Router:
    """Follows a server's cache by its KV events and says what a prompt will find there."""

    def __init__(self, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
        self._hashes: dict[tuple[Any, tuple[int, ...]], Any] = {}
        self._blocks: Counter[Any] = Counter()
        self.num_events = 0

    def follow(self) -> None:
        """Take what has been published."""
        while self._socket.poll(QUIET_MS):
            _, _, payload = self._socket.recv_multipart()
            for event in self._decoder.decode(payload).events:
                self.num_events += 1
                if isinstance(event, BlockStored):
                    parent = event.parent_block_hash
                    for number, stored in enumerate(event.block_hashes):
                        start = number * event.block_size
                        tokens = tuple(event.token_ids[start : start + event.block_size])
                        self._hashes[parent, tokens] = parent = stored
                        self._blocks[stored] += 1
                elif isinstance(event, BlockRemoved):
                    self._blocks.subtract(event.block_hashes)

    def expected_tokens(self, prompt: list[int]) -> int:
        """Tokens of a prompt in the cache; its last one is always computed."""
        parent = None
        for start in range(0, len(prompt), BLOCK_TOKENS):
            tokens = tuple(prompt[start : start + BLOCK_TOKENS])
            parent = self._hashes.get((parent, tokens))
            if parent is None or self._blocks[parent] <= 0 or start + BLOCK_TOKENS >= len(prompt):
                return start
        return len(prompt)

    def close(self) -> None:
        self._socket.close(linger=0)


class Agents:
    """Sends turns of token ids to a server."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def turn(self, prompt: list[int], job: str | None = None, **tags: Any) -> tuple[str, int]:
        """The id of the reply, and the tokens of the prompt that were in the cache."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **tags}
        if job is not None:
            body["job_id"] = job
        url = f"{self._server.base_url}/completions"
        reply = httpx.post(url, json=body, timeout=LIMIT_S).raise_for_status().json()
        details = reply["usage"]["prompt_tokens_details"] or {}
        return reply["id"], details.get("cached_tokens") or 0

    def release(self, job: str) -> None:
        url = f"{self._server.base_url}/agentkv/jobs/{job}/release"
        httpx.post(url, timeout=LIMIT_S).raise_for_status()


def prompt_of(num_tokens: int, *, salt: int) -> list[int]:
    return [100 + (salt * 37 + index * 11) % 150 for index in range(num_tokens)]


def test_events_and_frees_of_a_real_server_are_true(
    request: pytest.FixtureRequest,
    server_pool: ServerPool,
    tiny_model_dir: Path,
    tmp_path: Path,
) -> None:
    """Under pins and pressure a router foresees each prompt's cache hit by KV events, and the
    socket says of each ended job once, with the ids of its replies, and of no other."""
    socket_path = str(tmp_path / "kv.sock")
    frees: list[KVFree] = []
    endpoint = f"ipc://{tmp_path}/events"  # a port might be the one that the server takes
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    settings = {
        **{"ttl": "fixed", "fixed_ttl_s": 60.0},
        "kv_socket": socket_path,
    }
    server = server_pool.get(
        tiny_model_dir,
        *(*TINY_ARGS, "--num-gpu-blocks-override", "40", "--max-model-len", "512"),
        *("--kv-events-config", json.dumps(events)),
        *("--additional-config", json.dumps({"agentkv": settings})),
        policy="continuum",
    )
    agents, router = Agents(server), Router(endpoint)
    hearing = threading.Thread(target=lambda: frees.extend(follow(socket_path)), daemon=True)
    hearing.start()
    request.addfinalizer(router.close)
    for salt in range(100, 120):  # a subscriber misses what came before it was connected
        agents.turn(prompt_of(40, salt=salt))
        router.follow()
        if router.num_events:
            break
    jobs = [f"job-{number}" for number in range(4)]
    prompts = {job: prompt_of(140, salt=number) for number, job in enumerate(jobs)}
    replies: dict[str, list[str]] = {job: [] for job in jobs}
    num_hits = 0
    for round_number in range(4):
        for number, job in enumerate(jobs):
            router.follow()
            expected = router.expected_tokens(prompts[job])
            reply, found = agents.turn(prompts[job], job, turn=round_number + 1)
            replies[job].append(reply)
            assert found == expected
            num_hits += found > 0
            prompts[job] = prompts[job] + prompt_of(60, salt=50 + number + 9 * round_number)
        agents.turn(prompt_of(300, salt=30 + round_number))
    assert num_hits
    assert metric(server, "agentkv:pin_ends_total", reason="pressure") > 0
    assert metric(server, "agentkv:pin_ends_total", reason="returned") > 0
    assert frees == []

    last, _ = agents.turn(prompts[jobs[0]], jobs[0], turn=5, is_last_step=True)
    agents.release(jobs[1])
    wait_for(lambda: len(frees) == 2)
    assert [(free.number, free.job_id, free.request_ids, free.reason) for free in frees] == [
        (1, jobs[0], (*replies[jobs[0]], last), "last_step"),
        (2, jobs[1], tuple(replies[jobs[1]]), "released"),
    ]
    states = {job["job_id"]: job["kv_state"] for job in agentkv_get(server, "jobs")["jobs"]}
    assert set(states) == set(jobs[2:])
    assert set(states.values()) <= {"PINNED", "ALLOCATED"}
