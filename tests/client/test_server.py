"""Servers without the plugin, strict, slow, dead or dying: the agent goes on as without us."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import openai
import pytest

import agentkv
from agentkv.client.transport import CALL_TIMEOUT_S, close_connections
from agentkv.testing import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}


@pytest.fixture
def plain() -> Iterator[ScriptedServer]:
    """A strict server without the plugin."""
    with ScriptedServer(has_plugin=False, is_strict=True) as server:
        yield server


def client_of(server: ScriptedServer, **options: Any) -> openai.OpenAI:
    options = {"api_key": "key", "max_retries": 0, **options}
    return openai.OpenAI(base_url=server.base_url, **options)


def test_a_server_without_the_plugin_gets_no_tags_and_one_warning(
    plain: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A strict endpoint would answer 400 to fields it does not know."""
    with client_of(plain) as client:
        for _ in range(2):
            with agentkv.session(client) as job:
                job.client.chat.completions.create(**CHAT)
                with job.tool("ls"):
                    pass
                job.client.chat.completions.create(**CHAT)
    assert [turn.tags for turn in plain.turns] == [{}] * 4
    assert job.summary().turns == 2
    assert agentkv.flush()
    assert len(plain.requests) == 5  # the four turns and one question
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "Calls go out untouched" in record.getMessage()
    assert plain.root_url in record.getMessage()


def test_nothing_is_said_where_the_user_does_not_care(
    plain: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """on_missing_server="ignore"."""
    with client_of(plain) as client, agentkv.session(client, on_missing_server="ignore") as job:
        job.client.chat.completions.create(**CHAT)
    assert caplog.records == []


def test_a_missing_plugin_is_an_error_on_entry_where_wanted(plain: ScriptedServer) -> None:
    """With a client the server is known by then, and nothing was sent to it."""
    with (
        client_of(plain) as client,
        pytest.raises(agentkv.AgentKVServerError, match="no agentkv plugin found at http"),
        agentkv.session(client, on_missing_server="raise"),
    ):
        pytest.fail("the session was entered")
    assert plain.turns == []
    assert agentkv.current_job() is None


def test_without_a_client_it_is_an_error_of_the_first_call(plain: ScriptedServer) -> None:
    """Before the call is sent."""
    with client_of(plain) as client, agentkv.session(on_missing_server="raise"):
        with pytest.raises(agentkv.AgentKVServerError):
            client.chat.completions.create(**CHAT)
        assert plain.turns == []


@pytest.mark.asyncio
async def test_the_async_forms_raise_as_well(plain: ScriptedServer) -> None:
    """On entry and with the first call."""
    async with openai.AsyncOpenAI(base_url=plain.base_url, api_key="key") as client:
        with pytest.raises(agentkv.AgentKVServerError):
            async with agentkv.session(client, on_missing_server="raise"):
                pytest.fail("the session was entered")
        async with agentkv.session(on_missing_server="raise"):
            with pytest.raises(agentkv.AgentKVServerError):
                await client.chat.completions.create(**CHAT)


def test_a_server_that_got_the_plugin_is_found_by_who_insists(plain: ScriptedServer) -> None:
    """on_missing_server="raise" asks anew on entry; that is what a restart calls for."""
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


@pytest.mark.parametrize(
    "info", [{"wire_version": 2}, {"wire_version": None}], ids=["newer", "none"]
)
def test_another_wire_version_gets_no_tags(
    info: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names both versions."""
    with (
        ScriptedServer(info=info) as server,
        client_of(server) as client,
        agentkv.session(client) as job,
    ):
        job.client.chat.completions.create(**CHAT)
        assert server.turns[0].tags == {}
    assert f"wire version {info['wire_version']}, this client 1" in caplog.text


def test_a_slow_server_costs_the_agent_one_short_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its calls then go out untouched, without waiting again."""
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
        assert [turn.tags for turn in server.turns] == [{}, {}]
    assert CALL_TIMEOUT_S <= first_s < CALL_TIMEOUT_S + 3
    assert second_s < CALL_TIMEOUT_S / 2
    assert len(caplog.records) == 1


def error_of(client: openai.OpenAI) -> str:
    with pytest.raises(openai.APIConnectionError) as caught:
        client.chat.completions.create(**CHAT)
    return repr(caught.value)


def test_a_dead_server_fails_as_without_us(caplog: pytest.LogCaptureFixture) -> None:
    """The SDK's own error, and one warning."""
    server = ScriptedServer()
    server.stop()
    with client_of(server) as client, agentkv.session(client) as job:
        assert error_of(job.client) == error_of(client)
    assert job.summary().failed_calls == 2
    assert len(caplog.records) == 1


def test_a_server_that_dies_in_mid_job_costs_the_agent_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Calls fail as without us, tools and leaving do not wait, and one warning is logged."""
    with ScriptedServer() as server, client_of(server) as client:
        with agentkv.session(client) as job:
            job.client.chat.completions.create(**CHAT)
            server.stop()
            started_at_s = time.monotonic()
            for _ in range(100):
                with job.tool("ls"):
                    pass
            assert error_of(job.client) == error_of(client)
        assert time.monotonic() - started_at_s < 1.0
        assert agentkv.flush(timeout_s=20)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "The agent is not affected" in caplog.text


def test_a_refused_question_is_not_the_last_word(caplog: pytest.LogCaptureFixture) -> None:
    """A wrong key says nothing about the plugin."""
    with (
        ScriptedServer(api_key="right") as server,
        client_of(server) as client,
        agentkv.session(client) as job,
    ):
        with pytest.raises(openai.AuthenticationError):
            job.client.chat.completions.create(**CHAT)
        job.client.with_options(api_key="right").chat.completions.create(**CHAT)
        assert [bool(turn.tags) for turn in server.turns] == [False, True]
    assert "401" in caplog.text


def test_without_a_free_thread_the_call_goes_out_untouched(
    server: ScriptedServer,
    client: openai.OpenAI,
    no_free_thread: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server cannot be asked then: one warning, and the agent gets its reply."""
    client.chat.completions.create(**CHAT)  # its connection has a thread of the server's from here
    with no_free_thread(), agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags for turn in server.turns] == [{}, {}]
    (record,) = caplog.records
    assert "no free thread to ask it from" in record.getMessage()
    assert "Calls go out untouched" in record.getMessage()


@pytest.mark.asyncio
async def test_nor_does_an_async_call_need_one(
    server: ScriptedServer,
    async_client: openai.AsyncOpenAI,
    no_free_thread: Callable[[], AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server beside the client's own is asked from a thread."""
    await async_client.chat.completions.create(**CHAT)
    with no_free_thread():
        async with agentkv.session(async_client, server=server.root_url) as job:
            await job.client.chat.completions.create(**CHAT)
    assert [turn.tags for turn in server.turns] == [{}, {}]
    assert "no free thread to ask it from" in caplog.text


def test_a_tool_runs_without_a_free_thread(
    server: ScriptedServer,
    client: openai.OpenAI,
    no_free_thread: Callable[[], AbstractContextManager[None]],
) -> None:
    """What it has to say waits, in order, for the first thread there is."""
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT)
        with no_free_thread(), job.tool("ls"):
            pass
    server.wait_for(lambda server: server.released == ["a"])
    assert [event["state"] for _, event in server.tool_events] == ["started", "finished"]


def test_a_server_behind_a_gateway_is_named_by_the_session(
    plain: ScriptedServer, server: ScriptedServer
) -> None:
    """`server=` says where the plugin is; the calls go where the client sends them."""
    plain_gateway = ScriptedServer(has_plugin=False)
    with (
        plain_gateway,
        client_of(plain_gateway) as client,
        agentkv.session(client, job_id="a", server=server.root_url) as job,
    ):
        job.client.chat.completions.create(**CHAT)
    assert plain_gateway.turns[0].tags == {"job_id": "a", "turn": 1}
    server.wait_for(lambda server: len(server.requests) == 2)
    assert [request.path for request in server.requests] == [
        "/v1/agentkv/info",
        "/v1/agentkv/jobs/a/release",
    ]


@pytest.mark.parametrize("proxy", ["socks://127.0.0.1:1", "http://[::1"])
def test_an_odd_proxy_in_the_environment_costs_the_tags_and_no_more(
    proxy: str,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server beside the client's own is asked by connections of ours, which heed it."""
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
    assert [turn.tags for turn in server.turns] == [{}, {}]
    (record,) = caplog.records
    assert "ALL_PROXY" in record.getMessage()
    assert "Calls go out untouched" in record.getMessage()


def test_what_is_not_agentkvs_info_is_no_plugin(caplog: pytest.LogCaptureFixture) -> None:
    """Some servers answer 200 to anything."""
    with (
        ScriptedServer(info={"wire_version": "hello"}) as server,
        client_of(server) as client,
        agentkv.session(client) as job,
    ):
        job.client.chat.completions.create(**CHAT)
        assert server.turns[0].tags == {}


def test_the_routes_can_be_called_by_hand(server: ScriptedServer) -> None:
    """ServerAPI raises what the server says."""
    api = agentkv.ServerAPI(server.base_url + "/", api_key="key")
    assert api.info()["policy"] == "scripted"
    with pytest.raises(agentkv.AgentKVServerError, match=r"jobs/none/release: HTTP 404 .*unknown"):
        api.release("none")
    with pytest.raises(agentkv.AgentKVServerError, match="no answer"):
        agentkv.ServerAPI("http://127.0.0.1:1").info()
    with pytest.raises(agentkv.AgentKVServerError, match="no answer"):
        agentkv.ServerAPI("no url at all").info()
