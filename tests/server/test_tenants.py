"""Several keys on a real server of two API processes: who sees what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool

pytestmark = pytest.mark.server

ALICE, BOB, ADMIN = "key-of-alice", "key-of-bob", "key-of-admin"
PROMPT = "List the files of this folder, then read the longest of them. " * 8
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture
def server(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """Two API servers without statistics, three keys, one of which is the admin's."""
    return server_pool.get(
        tiny_model_dir,
        *TINY_ARGS,
        *("--api-server-count", "2", "--disable-log-stats"),
        *("--api-key", ALICE, BOB),
        policy="agentkv",
        environment={"AGENTKV_ADMIN_KEY": ADMIN},
    )


@pytest.fixture
def keys(server: ServerProcess) -> Iterator[dict[str, httpx.Client]]:
    """A client of the server with each key."""
    clients = {
        key: httpx.Client(
            base_url=server.root_url, headers={"Authorization": f"Bearer {key}"}, timeout=60.0
        )
        for key in (ALICE, BOB, ADMIN)
    }
    yield clients
    for client in clients.values():
        client.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "n": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "stream": True}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "use_beam_search": True}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 4}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}),
    ],
    ids=["samples", "stream", "beams", "responses", "messages"],
)
def test_a_turn_belongs_to_its_key_on_every_route(
    keys: dict[str, httpx.Client], path: str, body: dict[str, Any]
) -> None:
    """Both API servers name the client of each request, of each sample and beam, to the engine."""
    alice, bob = keys[ALICE], keys[BOB]
    for _ in range(4):  # the kernel gives connections to both API servers
        with httpx.Client(base_url=alice.base_url, headers=alice.headers, timeout=60.0) as fresh:
            claim = {"vllm_xargs": {"agentkv_client": "another"}}
            request = {"model": "tiny", **body, **claim}
            reply = fresh.post(path, json=request, headers={"X-Session-ID": "routed"})
            assert reply.status_code == 200, reply.text
    assert alice.get("/v1/agentkv/jobs/routed").status_code == 200
    assert bob.get("/v1/agentkv/jobs/routed").status_code == 404
    assert [job["job_id"] for job in keys[ADMIN].get("/v1/agentkv/jobs").json()["jobs"]] == [
        "routed"
    ]
    assert alice.post("/v1/agentkv/jobs/routed/release").status_code == 200


def test_without_statistics_there_are_no_series(keys: dict[str, httpx.Client]) -> None:
    """With `--disable-log-stats` and two API servers no series stands at 0 as if nothing ran.

    vLLM's own are off, too, which a stat logger in its entry-point group would break.
    """
    metrics = keys[ALICE].get("/metrics").text
    assert "agentkv:" not in metrics
    assert "\nvllm:" not in metrics
