"""Several keys on a real server of two API processes: who sees what, and what is stored."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool

pytestmark = pytest.mark.server

ALICE, BOB, ADMIN = "key-of-alice", "key-of-bob", "key-of-admin"
SECRET = "hunter2"
COMMAND = f"API_TOKEN={SECRET} curl -u me:{SECRET} https://me:{SECRET}@host/x?api_key={SECRET}"
KEY = "curl"
"""What the server keeps and shows of it."""
PROMPT = "List the files of this folder, then read the longest of them. " * 8
MESSAGES = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server writes its files."""
    return tmp_path_factory.mktemp("tenants")


@pytest.fixture
def server(server_pool: ServerPool, tiny_model_dir: Path, folder: Path) -> ServerProcess:
    """Two API servers without statistics, three keys, one of which is the admin's."""
    settings = {"predictor_state": str(folder / "state.json"), "predictor_save_s": 0.1}
    return server_pool.get(
        tiny_model_dir,
        *TINY_ARGS,
        *("--api-server-count", "2", "--disable-log-stats"),
        *("--api-key", ALICE, BOB, "--agentkv-admin-key", ADMIN),
        *("--run-output-dir", str(folder / "log")),
        *("--additional-config", json.dumps({"agentkv": settings})),
        policy="agentkv",
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


def generate(client: httpx.Client, job_id: str) -> None:
    """A turn of a client that sends a session id and nothing else."""
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4}
    reply = client.post("/v1/completions", json=body, headers={"X-Session-ID": job_id})
    assert reply.status_code == 200, reply.text


def test_the_api_key_guards_everything_of_ours(server: ServerProcess) -> None:
    """Without a key: vLLM's 401 on our routes, and no word about tags on its own."""
    with httpx.Client(base_url=server.root_url, timeout=60.0) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ALICE}):
            for path in ("info", "stats", "jobs", "timestamps", "jobs/x"):
                reply = client.get(f"/v1/agentkv/{path}", headers=headers)
                assert (reply.status_code, reply.json()) == (401, {"error": "Unauthorized"})
            assert client.post("/v1/agentkv/jobs/x/release", headers=headers).status_code == 401
            wrong = {"model": "tiny", "prompt": "a", "job_id": 5, "agentkv_wire_version": 1}
            assert client.post("/v1/completions", json=wrong, headers=headers).status_code == 401


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


def test_no_secret_of_a_command_is_shown_stored_or_logged(
    server: ServerProcess, keys: dict[str, httpx.Client], folder: Path
) -> None:
    """Routes, files and the log have the command without its secrets, and no key of a client."""
    client = keys[ALICE]
    generate(client, "j")
    for state in ("started", "finished"):
        event = {"state": state, "command": COMMAND, "duration_s": 0.5}
        reply = client.post("/v1/agentkv/jobs/j/tool", json=event)
        assert reply.json()["is_ignored"] is False
    generate(client, "j")
    texts = [keys[ADMIN].get(f"/v1/agentkv/{path}").text for path in ("jobs", "timestamps")]
    assert f'"{KEY}"' in texts[1]
    assert client.post("/v1/agentkv/jobs/j/release").status_code == 200
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"scheduler_timestamps.jsonl", "state.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    texts += [path.read_text() for path in (*files, server.log_path)]
    for text in texts:
        assert SECRET not in text
    assert not any(key in server.log_path.read_text() for key in (ALICE, BOB, ADMIN))


def test_without_statistics_there_are_no_series(keys: dict[str, httpx.Client]) -> None:
    """With `--disable-log-stats` and two API servers no series stands at 0 as if nothing ran.

    vLLM's own are off, too, which a stat logger in its entry-point group would break.
    """
    metrics = keys[ALICE].get("/metrics").text
    assert "agentkv:" not in metrics
    assert "\nvllm:" not in metrics
