"""The wire, the routes and the metrics on a real vLLM server, with one API server and with two."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from agentkv.integrations.vllm.doctor.server import check_server
from agentkv.protocol import Tags
from agentkv.server.process import ServerProcess
from tests.conftest import TINY_ARGS, ServerPool
from tests.server.chat import metric, wait_for

pytestmark = pytest.mark.server

PROMPT = "List the files of this folder, then read the longest of them. " * 8
ROUTES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4},
}
API_KEYS = ("first-key", "second-key")
PATIENCE_S = 60.0


@pytest.fixture
def client(tiny_continuum_server: ServerProcess) -> Iterator[httpx.Client]:
    """A client of a server under continuum."""
    with httpx.Client(base_url=tiny_continuum_server.root_url, timeout=PATIENCE_S) as client:
        yield client


def new_job_id() -> str:
    return f"job-{uuid4().hex[:12]}"


def generate(
    client: httpx.Client,
    route: str = "/v1/chat/completions",
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> httpx.Response:
    request = {"model": "tiny", **ROUTES[route], **fields}
    return client.post(route, json=request, headers=headers)


def job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    reply = client.get(f"/v1/agentkv/jobs/{job_id}")
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_tags_reach_the_engine_from_every_route(
    client: httpx.Client, route: str, stream: bool
) -> None:
    """Fields of the body and headers arrive, streaming or not; a field comes before its header."""
    job_id = f"{new_job_id()} 7/100% é"
    headers = Tags(job_id, False, "above", 9, 7, "ls\n", 0.5).as_headers()
    reply = generate(client, route, headers, stream=stream, turn=1)
    assert reply.status_code == 200, reply.text
    assert ("data:" in reply.text) == stream
    assert generate(client, route, headers, turn=1).status_code == 200  # a retry
    found = job(client, quote(job_id))
    assert (found["turns"], found["expected_turns"]) == (1, 7)
    assert found["parent_job_id"] == "above"
    assert found["pinned_blocks"] > 0
    assert client.post(f"/v1/agentkv/jobs/{quote(job_id)}/release").json()["freed_blocks"] > 0


def test_the_last_step_keeps_nothing(client: httpx.Client) -> None:
    """is_last_step, and its header, end the job at once."""
    for headers, fields in (({}, {"is_last_step": True}), ({"x-dynamo-session-final": "1"}, {})):
        job_id = new_job_id()
        assert generate(client, job_id=job_id).status_code == 200
        assert generate(client, headers=headers, job_id=job_id, **fields).status_code == 200
        assert client.get(f"/v1/agentkv/jobs/{job_id}").status_code == 404


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_ends_its_request(client: httpx.Client, stream: bool) -> None:
    """vLLM still hears of the disconnect through the middleware."""
    job_id = new_job_id()
    endless = {"n": 32, "max_tokens": 3000, "ignore_eos": True, "stream": stream, "job_id": job_id}
    request = {"model": "tiny", "prompt": PROMPT, **endless}
    if stream:
        with client.stream("POST", "/v1/completions", json=request) as reply:
            next(reply.iter_lines())
    else:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=request, timeout=0.5)
    wait_for(lambda: job(client, job_id)["live_requests"] == 0)
    events = client.get("/v1/agentkv/timestamps").json()["jobs"][job_id]
    names = [event["event"] for event in events]
    assert names[-1] == "aborted"


def test_the_doctor_finds_nothing_wrong(tiny_continuum_server: ServerProcess) -> None:
    """All checks of a server under continuum are OK."""
    found = list(check_server(tiny_continuum_server.base_url, None))
    assert [check for check in found if check.status != "OK"] == []
    assert "log stats" in [check.name for check in found]


@pytest.mark.long
def test_stock_policies_are_stock(tiny_fcfs_server: ServerProcess) -> None:
    """Under fcfs: vLLM's own 404, no series of ours, no check of our fields."""
    server = tiny_fcfs_server
    with httpx.Client(base_url=server.root_url, timeout=PATIENCE_S) as client:
        ours, unknown = client.get("/v1/agentkv/info"), client.get("/v1/no-such-thing")
        assert (ours.status_code, ours.content) == (404, unknown.content)
        assert generate(client, job_id=5, turn="x").status_code == 200
        assert "agentkv:" not in client.get("/metrics").text
        names = [check.name for check in check_server(server.base_url, None)]
        assert names == ["server", "server plugin"]


@pytest.fixture
def two_api_servers(server_pool: ServerPool, tiny_model_dir: Path) -> ServerProcess:
    """Two API server processes over one engine, behind two API keys."""
    return server_pool.get(
        tiny_model_dir, *TINY_ARGS, "--api-server-count", "2", "--api-key", *API_KEYS
    )


@pytest.mark.long
def test_two_api_servers_are_one_server(two_api_servers: ServerProcess) -> None:
    """Jobs, totals and series are the same in every API server process."""
    root_url, key = two_api_servers.root_url, {"Authorization": f"Bearer {API_KEYS[1]}"}
    job_ids = [new_job_id() for _ in range(12)]
    for job_id in job_ids:  # a connection each, which the kernel hands to either process
        with httpx.Client(base_url=root_url, headers=key, timeout=PATIENCE_S) as client:
            assert generate(client, job_id=job_id).status_code == 200
            assert generate(client, headers={"X-AgentKV-Turn": "0"}).status_code == 400
    log = two_api_servers.log_path.read_text()
    assert {"ApiServer_0", "ApiServer_1"} <= set(re.findall(r"ApiServer_\d", log))
    with httpx.Client(base_url=root_url, headers=key, timeout=PATIENCE_S) as client:
        wait_for(lambda: metric(two_api_servers, "agentkv:pins_total") == len(job_ids))
        wait_for(lambda: metric(two_api_servers, "agentkv:bad_tags_total") == len(job_ids))
        wait_for(lambda: metric(two_api_servers, "agentkv:pinned_blocks") == 0)
        assert client.get("/v1/agentkv/stats").json()["pins_total"] == {"none": len(job_ids)}
        known = {found["job_id"] for found in client.get("/v1/agentkv/jobs").json()["jobs"]}
    assert set(job_ids) <= known
    for _ in range(6):
        assert httpx.get(f"{root_url}/v1/agentkv/stats", headers=key).status_code == 200
        assert metric(two_api_servers, "agentkv:pin_ends_total", reason="expired") == len(job_ids)
