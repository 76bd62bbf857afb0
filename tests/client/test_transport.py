"""Our routes are called as the client itself calls: with its keys and its transport."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.client.context import job_made_current
from agentkv.client.transport import CALL_TIMEOUT_S
from agentkv.protocol import ToolEvent
from tests.scripted_apis import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}

# Below the SDK's next major is the next major of its HTTP client, under another name.
httpx: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")


@pytest.fixture
def guarded() -> Iterator[ScriptedServer]:
    """A server that wants a key."""
    with ScriptedServer(api_key="key") as server:
        yield server
        assert agentkv.flush(timeout_s=20)


def test_another_providers_client_keeps_its_key_and_its_bodies(
    server: ScriptedServer, client: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    """A session without a client names one server; clients of other servers keep their keys."""
    with (
        ScriptedServer(has_plugin=False, is_strict=True) as hosted,
        OpenAI(base_url=hosted.base_url, api_key="sk-hosted", max_retries=0) as judge,
        agentkv.session(server=server.root_url),
    ):
        client.chat.completions.create(**CHAT)
        judge.chat.completions.create(**CHAT)
        assert hosted.turns[0].body == CHAT
    server.wait_for(lambda server: server.released)
    assert server.turns[0].tags["turn"] == 1
    assert not any("sk-hosted" in request.headers["authorization"] for request in server.requests)
    assert len(caplog.records) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_key_that_is_made_when_needed_is_used(
    is_async: bool, guarded: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK calls for such a key with each request; the question and the feedback carry it."""

    async def key() -> str:
        return "key"

    made = {"base_url": guarded.base_url, "api_key": key if is_async else lambda: "key"}
    client: Any = AsyncOpenAI(**made) if is_async else OpenAI(**made)
    with agentkv.session(client, on_missing_server="warn" if is_async else "raise") as job:
        reply = job.client.chat.completions.create(**CHAT)
        if is_async:
            await reply
        with job.tool("ls"):
            pass
        assert agentkv.flush(timeout_s=20)  # before the client is closed
    closed = client.close()
    if is_async:
        await closed
    await asyncio.to_thread(guarded.wait_for, lambda server: server.released)
    assert "job_id" in guarded.turns[0].body
    assert len(guarded.tool_events) == 2
    assert caplog.records == []


def test_a_server_that_is_called_with_many_keys_is_one_server(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once, and each tool is reported to it once."""
    numbers = itertools.count()
    with (
        OpenAI(base_url=server.base_url, api_key=lambda: f"key-{next(numbers)}") as changing,
        OpenAI(base_url=server.base_url, api_key="another") as another,
    ):
        with agentkv.session() as job:
            for client in (changing, changing, another):
                client.chat.completions.create(**CHAT)
            with job.tool("ls"):
                pass
        server.wait_for(lambda server: server.released)
    paths = [request.path for request in server.requests]
    assert paths.count("/v1/agentkv/info") == 1
    assert (len(server.tool_events), len(server.released)) == (2, 1)
    assert caplog.records == []


@pytest.mark.parametrize("keeps_clients", [True, False])
def test_jobs_that_take_turns_keep_their_own_headers(keeps_clients: bool) -> None:
    """The question, tools and releases of a job carry the id and the headers of its own client."""
    with ScriptedServer() as server:
        clients = [
            OpenAI(base_url=server.base_url, api_key=name, default_headers={"X-Gateway": name})
            for name in ("a", "b")
        ]
        sessions = [agentkv.session(client, job_id=client.api_key) for client in clients]
        if not keeps_clients:
            sessions = [agentkv.session(job_id=client.api_key) for client in clients]
        jobs = [session.__enter__() for session in sessions]
        for _ in range(3):
            for client, job in zip(clients, jobs, strict=True):
                with job_made_current(job):
                    client.chat.completions.create(**CHAT)
                    with job.tool("ls"):
                        pass
        assert agentkv.flush(timeout_s=20)  # or a client is closed while it sends
        if not keeps_clients:
            for client in clients:
                client.close()
            clients.clear()
        for session in sessions:
            session.__exit__(None, None, None)
        assert agentkv.flush(timeout_s=20)
    assert sorted(server.released) == ["a", "b"]
    assert len(server.tool_events) == 12
    for request in server.requests:
        job_id = request.headers["x-session-id"]
        assert request.headers["x-gateway"] == job_id
        assert request.headers["authorization"] == f"Bearer {job_id}"
        assert request.tags.get("job_id", job_id) == job_id
        assert "/jobs/" not in request.path or f"/jobs/{job_id}/" in request.path


class Elsewhere(httpx.HTTPTransport):
    """Sends every request to one server and ignores its URL, as for a socket."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = httpx.URL(url)

    def handle_request(self, request: Any) -> Any:
        request.url = request.url.copy_with(host=self.url.host, port=self.url.port)
        return super().handle_request(request)


class AsyncElsewhere(httpx.AsyncHTTPTransport):
    """The same for asynchronous clients."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = httpx.URL(url)

    async def handle_async_request(self, request: Any) -> Any:
        request.url = request.url.copy_with(host=self.url.host, port=self.url.port)
        return await super().handle_async_request(request)


NOWHERE = {"base_url": "http://nowhere.invalid/v1", "api_key": "key"}


def test_a_transport_of_the_users_own_is_used(server: ScriptedServer) -> None:
    """The question and the feedback go over the transport of the calls."""
    http_client = httpx.Client(transport=Elsewhere(server.root_url))
    with (
        OpenAI(**NOWHERE, http_client=http_client) as client,
        agentkv.session(client, on_missing_server="raise") as job,
    ):
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
        server.wait_for(lambda server: len(server.tool_events) == 2)
    assert "job_id" in server.turns[0].body


@pytest.mark.asyncio
async def test_an_async_transport_is_used_for_the_question(server: ScriptedServer) -> None:
    """Feedback needs a loop there, and is dropped with a warning if no other way leads there."""
    http_client = httpx.AsyncClient(transport=AsyncElsewhere(server.root_url))
    async with (
        AsyncOpenAI(**NOWHERE, http_client=http_client) as client,
        agentkv.session(client, on_missing_server="raise") as job,
    ):
        calls = (job.client.chat.completions.create(**CHAT) for _ in range(4))
        await asyncio.gather(*calls)
    assert all("job_id" in turn.body for turn in server.turns)
    assert [request.path for request in server.requests].count("/v1/agentkv/info") == 1


def test_a_loop_that_stopped_while_it_asked_costs_others_one_short_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If the loop that asks has stopped, other callers wait for one short time-out, once."""
    loop = asyncio.new_event_loop()
    with ScriptedServer(info_delay_s=60) as server:
        stopped = AsyncOpenAI(base_url=server.base_url, api_key="key")
        task = loop.create_task(_enter(stopped))
        while not server.requests:
            loop.run_until_complete(asyncio.sleep(0.01))
        with OpenAI(base_url=server.base_url, api_key="key") as client:
            for _ in range(2):
                with agentkv.session(client) as job:
                    started_at_s = time.monotonic()
                    job.client.chat.completions.create(**CHAT)
                    assert time.monotonic() - started_at_s < CALL_TIMEOUT_S + 5
        (record,) = caplog.records
        assert "no answer within 3 s" in record.getMessage()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(stopped.close())
    loop.close()


async def _enter(client: AsyncOpenAI) -> None:
    async with agentkv.session(client, on_missing_server="raise"):
        pytest.fail("the session was entered")


@pytest.mark.parametrize("job_id", [".", "..", "a/../b", "työ/1?x=#%20 y", "ü ?#%2F"])
def test_any_job_id_finds_its_routes(server: ScriptedServer, job_id: str) -> None:
    """Every job id reaches its routes, also if it looks like a path."""
    with (
        OpenAI(base_url=server.base_url, api_key="key") as client,
        agentkv.session(client, job_id=job_id) as job,
    ):
        job.client.chat.completions.create(**CHAT)
    server.wait_for(lambda server: server.released)
    assert server.released == [job_id]
    agentkv.ServerAPI(server.root_url).release(job_id)
    assert server.released == [job_id] * 2


def test_the_routes_can_be_called_by_hand(server: ScriptedServer) -> None:
    """ServerAPI returns JSON, and raises an error with the reason of the server or the network."""
    api = agentkv.ServerAPI(server.base_url + "/", api_key="key")
    assert api.info()["policy"] == "scripted"
    with pytest.raises(agentkv.AgentKVServerError, match=r"jobs/none/release: HTTP 404 .*unknown"):
        api.release("none")
    for url in ("http://127.0.0.1:1", "no url at all"):
        with pytest.raises(agentkv.AgentKVServerError, match="no answer"):
            agentkv.ServerAPI(url).info()


def test_a_tool_can_be_reported_by_hand(server: ScriptedServer, client: OpenAI) -> None:
    """ServerAPI reports a tool of a job that the server knows, its command as it is."""
    client.chat.completions.create(**CHAT, extra_headers={"X-AgentKV-Job": "a"})
    event = ToolEvent("started", command="curl -u me:hunter2 localhost", turn=1)
    agentkv.ServerAPI(server.root_url).send_tool_event("a", event)
    assert server.tool_events == [("a", event.as_fields())]
