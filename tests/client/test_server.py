"""Servers without the plugin, strict, slow, dead or dying: the agent goes on as without agentkv."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.client.transport import CALL_TIMEOUT_S, close_connections
from tests.scripted_apis import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}


@pytest.fixture
def plain() -> Iterator[ScriptedServer]:
    """A strict server without the plugin."""
    with ScriptedServer(has_plugin=False, is_strict=True) as server:
        yield server


def client_of(server: ScriptedServer, **options: Any) -> OpenAI:
    options = {"api_key": "key", "max_retries": 0, **options}
    return OpenAI(base_url=server.base_url, **options)


@pytest.mark.parametrize("wanted", ["warn", "ignore"])
def test_a_server_without_the_plugin_gets_headers_alone_and_one_warning(
    wanted: Any, plain: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once, and no body changes: a strict endpoint answers 400 to unknown fields."""
    with client_of(plain) as client:
        for _ in range(2):
            with agentkv.session(client, on_missing_server=wanted) as job:
                job.client.chat.completions.create(**CHAT)
                with job.tool("ls"):
                    pass
                job.client.chat.completions.create(**CHAT)
    assert [turn.body for turn in plain.turns] == [CHAT] * 4
    assert [turn.tags["turn"] for turn in plain.turns] == [1, 2] * 2
    assert job.summary().turns == 2
    assert agentkv.flush()
    assert len(plain.requests) == 5  # the four turns and one question
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == len(caplog.records) == (wanted == "warn")
    for text in said:
        assert "Calls go out with their bodies untouched" in text
        assert plain.root_url in text


@pytest.mark.asyncio
async def test_raise_is_an_error_on_entry_or_with_the_first_call(plain: ScriptedServer) -> None:
    """on_missing_server="raise" raises on entry if the server is known, and sends nothing."""
    error = pytest.raises(agentkv.AgentKVServerError, match="no agentkv plugin found at http")
    async with AsyncOpenAI(base_url=plain.base_url, api_key="key") as async_client:
        with client_of(plain) as client:
            with error, agentkv.session(client, on_missing_server="raise"):
                pytest.fail("the session was entered")
            with error:
                async with agentkv.session(async_client, on_missing_server="raise"):
                    pytest.fail("the session was entered")
            assert agentkv.current_job() is None
            with agentkv.session(on_missing_server="raise"):
                with error:
                    client.chat.completions.create(**CHAT)
                with error:
                    await async_client.chat.completions.create(**CHAT)
    assert plain.turns == []


def test_raise_asks_a_server_again(plain: ScriptedServer) -> None:
    """A plugin that came with a restart is found on entry with on_missing_server="raise"."""
    with client_of(plain) as client:
        with agentkv.session(client, on_missing_server="ignore") as job:
            job.client.chat.completions.create(**CHAT)
        plain.has_plugin = True
        with agentkv.session(client, on_missing_server="raise"):
            pass


def test_a_server_is_asked_once_by_many_threads(server: ScriptedServer) -> None:
    """Sessions, clients and threads of a process share the answer."""

    def run() -> None:
        with client_of(server) as client, agentkv.session(client) as job:
            job.client.chat.completions.create(**CHAT)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [request.path for request in server.requests]
    assert paths.count("/v1/agentkv/info") == 1
    assert len({turn.tags["job_id"] for turn in server.turns}) == 8


@pytest.mark.parametrize("version", [2, None, "hello"])
def test_another_wire_version_gets_no_fields(
    version: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names both versions, and no password; what answers 200 to anything has none."""
    with ScriptedServer(info={"wire_version": version}) as server:
        url = server.base_url.replace("://", "://me:hunter2@")
        with (
            OpenAI(base_url=url, api_key="key") as client,
            agentkv.session(client) as job,
        ):
            job.client.chat.completions.create(**CHAT)
        assert server.turns[0].body == CHAT
    assert f"wire version {version!r}, this client 1" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_slow_server_costs_the_agent_one_short_time_out(caplog: pytest.LogCaptureFixture) -> None:
    """After the time-out its calls go out with plain bodies, without waiting again."""
    with (
        ScriptedServer(info_delay_s=CALL_TIMEOUT_S + 5) as server,
        client_of(server) as client,
        agentkv.session(client) as job,
    ):
        started_at_s = time.monotonic()
        job.client.chat.completions.create(**CHAT)
        first_s = time.monotonic() - started_at_s
        job.client.chat.completions.create(**CHAT)
        second_s = time.monotonic() - started_at_s - first_s
        assert [turn.body for turn in server.turns] == [CHAT, CHAT]
    assert CALL_TIMEOUT_S <= first_s < CALL_TIMEOUT_S + 3
    assert second_s < CALL_TIMEOUT_S / 2
    assert len(caplog.records) == 1


def test_a_refused_question_is_asked_again_with_another_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A 401 says nothing about the plugin, so a client with the right key asks again."""
    with (
        ScriptedServer(api_key="right") as server,
        client_of(server) as client,
        agentkv.session(client) as job,
    ):
        with pytest.raises(openai.AuthenticationError):
            job.client.chat.completions.create(**CHAT)
        job.client.with_options(api_key="right").chat.completions.create(**CHAT)
        assert ["job_id" in turn.body for turn in server.turns] == [False, True]
    assert "401" in caplog.text


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_without_a_free_thread_the_body_goes_out_untouched(
    is_async: bool,
    server: ScriptedServer,
    client: OpenAI,
    async_client: AsyncOpenAI,
    no_free_thread: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that must be asked from a thread is not asked: one warning, and the reply comes."""
    client.chat.completions.create(**CHAT)  # from here on the connection has the server's thread
    await async_client.chat.completions.create(**CHAT)
    with no_free_thread():
        if is_async:
            async with agentkv.session(async_client, server=server.root_url) as job:
                await job.client.chat.completions.create(**CHAT)
        else:
            with agentkv.session(client) as job:
                job.client.chat.completions.create(**CHAT)
    assert [turn.body for turn in server.turns] == [CHAT] * 3
    (record,) = caplog.records
    assert "no free thread to ask it from" in record.getMessage()
    assert "Calls go out with their bodies untouched" in record.getMessage()


def test_a_tool_runs_without_a_free_thread(
    server: ScriptedServer,
    client: OpenAI,
    no_free_thread: Callable[[], AbstractContextManager[None]],
) -> None:
    """The events of a tool wait, in order, until a thread can start."""
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT)
        with no_free_thread(), job.tool("ls"):
            pass
    server.wait_for(lambda server: server.released == ["a"])
    assert [event["state"] for _, event in server.tool_events] == ["started", "finished"]


def test_a_server_behind_a_gateway_is_named_by_the_session(server: ScriptedServer) -> None:
    """`server=` names the server with the plugin; calls go where the client sends them."""
    with (
        ScriptedServer(has_plugin=False) as gateway,
        client_of(gateway) as client,
        agentkv.session(client, job_id="a", server=server.root_url) as job,
    ):
        job.client.chat.completions.create(**CHAT)
    assert gateway.turns[0].tags == {"job_id": "a", "turn": 1}
    server.wait_for(lambda server: len(server.requests) == 2)
    paths = [request.path for request in server.requests]
    assert paths == ["/v1/agentkv/info", "/v1/agentkv/jobs/a/release"]


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:1", "http://[::1"])
def test_an_odd_proxy_in_the_environment_costs_only_the_fields(
    proxy: str,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Connections of our own use the environment; if that is wrong, one warning says so."""
    close_connections()
    http_client = openai.DefaultHttpxClient(trust_env=False)
    with (
        monkeypatch.context() as patch,
        client_of(server, http_client=http_client) as client,
        agentkv.session(client, server=server.root_url) as job,
    ):
        patch.setenv("ALL_PROXY", proxy)
        job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT)
    assert [turn.body for turn in server.turns] == [CHAT, CHAT]
    (record,) = caplog.records
    assert "ALL_PROXY" in record.getMessage()
    assert "Calls go out with their bodies untouched" in record.getMessage()
