"""What a real server tells listeners of the KV that jobs leave, on a socket."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.listeners import KVFree, follow
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import LIMIT_S, agentkv_get, metric, wait_for

pytestmark = [pytest.mark.server, pytest.mark.long]


def prompt_of(num_tokens: int, *, salt: int) -> list[int]:
    return [100 + (salt * 37 + index * 11) % 150 for index in range(num_tokens)]


def test_a_listener_hears_of_each_ended_job_once(
    server_pool: ServerPool, tiny_model_dir: Path, tmp_path: Path
) -> None:
    """With the ids of its replies, and of no other, under pins and pressure."""
    socket_path = str(tmp_path / "kv.sock")
    settings = {"ttl": "fixed", "fixed_ttl_s": 60.0, "kv_socket": socket_path}
    server = server_pool.get(
        tiny_model_dir,
        *(*TINY_ARGS, "--num-gpu-blocks-override", "40", "--max-model-len", "512"),
        *("--additional-config", json.dumps({"agentkv": settings})),
    )
    frees: list[KVFree] = []
    hearing = threading.Thread(target=lambda: frees.extend(follow(socket_path)), daemon=True)
    hearing.start()

    def turn(prompt: list[int], **tags: Any) -> str:
        """The id of the reply."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True, **tags}
        reply = httpx.post(f"{server.base_url}/completions", json=body, timeout=LIMIT_S)
        return str(reply.raise_for_status().json()["id"])

    jobs = [f"job-{number}" for number in range(4)]
    prompts = {job: prompt_of(140, salt=number) for number, job in enumerate(jobs)}
    replies: dict[str, list[str]] = {job: [] for job in jobs}
    for round_number in range(4):
        for number, job in enumerate(jobs):
            replies[job].append(turn(prompts[job], job_id=job, turn=round_number + 1))
            prompts[job] = prompts[job] + prompt_of(60, salt=50 + number + 9 * round_number)
        turn(prompt_of(300, salt=30 + round_number))
    assert metric(server, "agentkv:pin_ends_total", reason="pressure") > 0
    assert metric(server, "agentkv:pin_ends_total", reason="returned") > 0
    assert frees == []

    last = turn(prompts[jobs[0]], job_id=jobs[0], turn=5, is_last_step=True)
    url = f"{server.base_url}/agentkv/jobs/{jobs[1]}/release"
    httpx.post(url, timeout=LIMIT_S).raise_for_status()
    wait_for(lambda: len(frees) == 2)
    assert [(free.number, free.job_id, free.request_ids, free.reason) for free in frees] == [
        (1, jobs[0], (*replies[jobs[0]], last), "last_step"),
        (2, jobs[1], tuple(replies[jobs[1]]), "released"),
    ]
    states = {job["job_id"]: job["kv_state"] for job in agentkv_get(server, "jobs")["jobs"]}
    assert set(states) == set(jobs[2:])
    assert set(states.values()) <= {"PINNED", "ALLOCATED"}
