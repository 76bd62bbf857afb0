"""Servers without the plugin, slow, refusing or behind a gateway: the agent goes on as ever."""

import asyncio
import importlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.protocol import ToolEvent
from tests.scripted_apis import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}

# Below the SDK's next major is the next major of its HTTP client, under another name.
httpx: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")


@pytest.fixture
def plain() -> Iterator[ScriptedServer]:
    """A strict server without the plugin."""
    with ScriptedServer(has_plugin=False, is_strict=True) as server:
        yield server


def client_of(server: ScriptedServer, **options: Any) -> OpenAI:
    return OpenAI(base_url=server.base_url, **{"api_key": "key", "max_retries": 0, **options})


def paths(server: ScriptedServer) -> list[str]:
    return [request.path.removeprefix("/v1") for request in server.requests]


@pytest.mark.parametrize("wanted", ["warn", "ignore"])
def test_a_server_without_the_plugin_is_asked_once(
    wanted: Any, plain: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind the first report; nothing but headers and that question reaches it, one warning us."""
    with client_of(plain) as client:
        for _ in range(2):
            with agentkv.session(client, on_missing_server=wanted) as job:
                job.client.chat.completions.create(**CHAT)
                with job.tool("cat secrets"):
                    pass
            assert agentkv.flush(timeout_s=20)
    assert [turn.body for turn in plain.turns] == [CHAT] * 2
    assert sorted(paths(plain)) == ["/agentkv/info", *["/chat/completions"] * 2]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == (wanted == "warn")
    assert all("Calls go out as ever" in text and plain.root_url in text for text in said)
    assert "no agentkv plugin found" in str(job.summary())


@pytest.mark.asyncio
async def test_raise_is_an_error_on_entry_or_with_the_first_call(plain: ScriptedServer) -> None:
    """on_missing_server="raise" raises on entry if the server is known, and sends nothing."""
    error = pytest.raises(agentkv.AgentKVServerError, match="no agentkv plugin found at http")
    async with AsyncOpenAI(base_url=plain.base_url, api_key="key") as async_client:
        with client_of(plain) as client:
            for options in ({"client": client}, {"server": plain.root_url}):
                with error, agentkv.session(**options, on_missing_server="raise"):
                    pytest.fail("the session was entered")
            with error:
                async with agentkv.session(async_client, on_missing_server="raise"):
                    pytest.fail("the session was entered")
            assert agentkv.current_job() is None
            with agentkv.session(on_missing_server="raise"):
                with error:
                    httpx.post(f"{plain.base_url}/chat/completions", json=CHAT)
                # OpenAI 2 makes a connection error of any error from below, OpenAI 3 of httpx's
                wrapped = pytest.raises((openai.APIConnectionError, agentkv.AgentKVServerError))
                with wrapped as caught:
                    client.chat.completions.create(**CHAT)
                errors = [caught.value]
                with wrapped as caught:
                    await async_client.with_options(max_retries=0).chat.completions.create(**CHAT)
                errors.append(caught.value)
                assert all("no agentkv plugin" in f"{each} {each.__cause__}" for each in errors)
            assert plain.turns == []
            plain.has_plugin = True  # it came with a restart
            with agentkv.session(client, on_missing_server="raise"):
                pass


@pytest.mark.parametrize("version", [2, None, "hello"])
def test_another_wire_version_gets_no_reports(
    version: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names both versions, and no password; what answers 200 to anything has none."""
    with ScriptedServer(info={"wire_version": version}) as server:
        url = server.base_url.replace("://", "://me:hunter2@")
        with OpenAI(base_url=url, api_key="key") as client, agentkv.session(client) as job:
            job.client.chat.completions.create(**CHAT)
        assert agentkv.flush(timeout_s=20)
    assert server.released == []
    assert f"wire version {version!r}, this client 1" in caplog.text
    assert "hunter2" not in caplog.text


def test_no_request_waits_for_a_slow_server(caplog: pytest.LogCaptureFixture) -> None:
    """Neither do tools, the end of the session, or its summary for more than a second."""
    with ScriptedServer(info_delay_s=60) as server, client_of(server) as client:
        started_at_s = time.monotonic()
        with agentkv.session(client) as job:
            job.client.chat.completions.create(**CHAT)
            with job.tool("ls"):
                pass
            job.client.chat.completions.create(**CHAT)
        assert time.monotonic() - started_at_s < 1
        assert job.summary().turns == 2
        assert time.monotonic() - started_at_s < 2.5
        assert agentkv.flush(timeout_s=20)
    assert len(caplog.records) == 1


def test_a_refused_question_is_asked_again_with_another_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A 401 says nothing about the plugin, so a job with the right key asks again."""
    with ScriptedServer(api_key="right") as server:
        for key in ("wrong", "right"):
            with client_of(server, api_key=key) as client, agentkv.session(client) as job:
                if key == "right":
                    job.client.chat.completions.create(**CHAT)
                else:
                    with pytest.raises(openai.AuthenticationError):
                        job.client.chat.completions.create(**CHAT)
            assert agentkv.flush(timeout_s=20)
    assert len(server.released) == 1
    assert "401" in caplog.text


def test_a_tool_runs_without_a_free_thread(server: ScriptedServer, client: OpenAI) -> None:
    """The events of a tool wait, in order, until a thread can start."""
    client.chat.completions.create(**CHAT)  # from here on the connection has the server's thread
    before = threading.stack_size(1 << 46)  # more than the system has for a stack
    try:
        with agentkv.session(client, job_id="a") as job:
            job.client.chat.completions.create(**CHAT)
            with job.tool("ls"):
                pass
    finally:
        threading.stack_size(before)
    assert agentkv.flush(timeout_s=20)
    assert [event["state"] for _, event in server.tool_events] == ["started", "finished"]
    assert server.released == ["a"]


def test_a_server_behind_a_gateway_is_named_by_the_session(server: ScriptedServer) -> None:
    """`server=` names the server with the plugin; calls go where the client sends them."""
    with (
        ScriptedServer(has_plugin=False) as gateway,
        client_of(gateway) as client,
        agentkv.session(client, job_id="a", server=server.root_url) as job,
    ):
        job.client.chat.completions.create(**CHAT)
    server.wait_for(lambda server: server.released)
    assert gateway.turns[0].tags == {"job_id": "a", "turn": 1}
    assert paths(gateway) == ["/chat/completions"]
    assert server.requests[-1].headers["authorization"] == "Bearer key"


def test_another_providers_client_keeps_its_key(
    server: ScriptedServer, client: OpenAI, plain: ScriptedServer
) -> None:
    """A session without a client names one server; clients of other servers keep their keys."""
    with (
        client_of(plain, api_key="sk-hosted") as judge,
        agentkv.session(server=server.root_url),
    ):
        client.chat.completions.create(**CHAT)
        judge.chat.completions.create(**CHAT)
    server.wait_for(lambda server: server.released)
    assert agentkv.flush(timeout_s=20)
    assert not any("sk-hosted" in str(request.headers) for request in server.requests)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_key_that_is_made_when_needed_is_used(
    is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK calls for such a key with each request; the reports carry it."""

    async def key() -> str:
        return "key"

    with ScriptedServer(api_key="key") as server:
        made = {"base_url": server.base_url, "api_key": key if is_async else lambda: "key"}
        client: Any = AsyncOpenAI(**made) if is_async else OpenAI(**made)
        with agentkv.session(client, on_missing_server="raise") as job:
            reply = job.client.chat.completions.create(**CHAT)
            if is_async:
                await reply
            with job.tool("ls"):
                pass
        closed = client.close()
        if is_async:
            await closed
        assert await asyncio.to_thread(agentkv.flush, 20)
    assert (len(server.tool_events), len(server.released)) == (2, 1)
    assert caplog.records == []


@pytest.mark.parametrize("keeps_clients", [True, False])
def test_jobs_that_take_turns_keep_their_own_headers(
    keeps_clients: bool, server: ScriptedServer
) -> None:
    """Tools and releases carry the id and the headers of their job's own client, also when that
    was closed."""
    clients = [
        client_of(server, api_key=name, default_headers={"X-Gateway": name}) for name in ("a", "b")
    ]
    sessions = [agentkv.session(client, job_id=client.api_key) for client in clients]
    jobs = [session.__enter__() for session in sessions]
    for job in jobs * 2:
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    assert agentkv.flush(timeout_s=20)  # or a client is closed while it sends
    for client in () if keeps_clients else clients:
        client.close()
    for session in sessions:
        session.__exit__(None, None, None)
    assert agentkv.flush(timeout_s=20)
    assert sorted(server.released) == ["a", "b"]
    assert (len(server.tool_events), paths(server).count("/agentkv/info")) == (8, 1)
    for request in server.requests:
        job_id = request.headers["x-session-id"]
        assert request.headers["x-gateway"] == job_id
        assert request.headers["authorization"] == f"Bearer {job_id}"
        assert "/jobs/" not in request.path or f"/jobs/{job_id}/" in request.path
    for client in clients:
        client.close()


def test_a_transport_of_the_users_own_is_used() -> None:
    """The question and the reports go over the transport of the calls."""
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json={"wire_version": 1})

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://a") as client:
        with agentkv.session(client, on_missing_server="raise") as job:
            job.client.post("/v1/chat/completions", json=CHAT)
            with job.tool("ls"):
                pass
        assert agentkv.flush(timeout_s=20)
    assert seen == ["info", "completions", "tool", "tool", "release"]


@pytest.mark.parametrize("job_id", [".", "..", "a/../b", "työ/1?x=#%20 y", "ü ?#%2F"])
def test_any_job_id_finds_its_routes(server: ScriptedServer, client: OpenAI, job_id: str) -> None:
    """Every job id reaches its routes, also if it looks like a path."""
    with agentkv.session(client, job_id=job_id) as job:
        job.client.chat.completions.create(**CHAT)
    server.wait_for(lambda server: server.released)
    agentkv.ServerAPI(server.root_url).release(job_id)
    assert server.released == [job_id] * 2


def test_the_routes_can_be_called_by_hand(server: ScriptedServer, client: OpenAI) -> None:
    """ServerAPI returns JSON, and raises an error with the reason of the server or the network."""
    api = agentkv.ServerAPI(server.base_url + "/", api_key="key")
    assert api.info()["policy"] == "scripted"
    client.chat.completions.create(**CHAT, extra_headers={"X-AgentKV-Job": "a"})
    event = ToolEvent("started", command="curl -u me:hunter2 localhost", turn=1)
    api.send_tool_event("a", event)
    assert server.tool_events == [("a", event.as_fields())]
    with pytest.raises(agentkv.AgentKVServerError, match=r"jobs/none/release: HTTP 404 .*unknown"):
        api.release("none")
    for url in ("http://127.0.0.1:1", "no url at all"):
        with pytest.raises(agentkv.AgentKVServerError, match="no answer"):
            agentkv.ServerAPI(url).info()
