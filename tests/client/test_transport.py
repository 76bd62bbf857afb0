"""The routes are called as the client itself calls: its keys, its transport; and by nobody else."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

import agentkv
from agentkv.client.transport import CALL_TIMEOUT_S
from agentkv.testing import ScriptedReply, ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}

# Below the SDK's next major is the next major of its HTTP client, under another name.
httpx: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")


@pytest.fixture
def guarded() -> Iterator[ScriptedServer]:
    """A server that wants a key."""
    with ScriptedServer(api_key="key") as server:
        yield server
        assert agentkv.flush(timeout_s=20)


def test_another_providers_client_keeps_its_key_and_gets_no_tags(
    server: ScriptedServer, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    """A session without a client names one server; a client of another is none of its business."""
    with (
        ScriptedServer(has_plugin=False, is_strict=True) as hosted,
        openai.OpenAI(base_url=hosted.base_url, api_key="sk-hosted", max_retries=0) as judge,
        agentkv.session(server=server.root_url),
    ):
        client.chat.completions.create(**CHAT)
        judge.chat.completions.create(**CHAT)
        assert hosted.turns[0].tags == {}
    server.wait_for(lambda server: server.released)
    assert server.turns[0].tags["turn"] == 1
    assert not any("sk-hosted" in request.headers["authorization"] for request in server.requests)
    assert len(caplog.records) == 1


def test_a_key_that_is_made_when_needed_is_asked_with(
    guarded: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK calls for it with each request, and only then."""
    with (
        openai.OpenAI(base_url=guarded.base_url, api_key=lambda: "key") as client,
        agentkv.session(client, on_missing_server="raise") as job,
    ):
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    guarded.wait_for(lambda server: server.released)
    assert guarded.turns[0].tags
    assert caplog.records == []


@pytest.mark.asyncio
async def test_an_async_key_too(guarded: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    """Also for the tool events, which no loop sends."""

    async def key() -> str:
        return "key"

    async with (
        openai.AsyncOpenAI(base_url=guarded.base_url, api_key=key) as client,
        agentkv.session(client) as job,
    ):
        await job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    await asyncio.to_thread(guarded.wait_for, lambda server: server.released)
    assert guarded.turns[0].tags
    assert len(guarded.tool_events) == 2
    assert caplog.records == []


def test_a_key_that_changes_with_every_call_is_one_server(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked once, and hears of a tool once."""
    numbers = itertools.count()
    with openai.OpenAI(base_url=server.base_url, api_key=lambda: f"key-{next(numbers)}") as client:
        with agentkv.session(client) as job:
            for _ in range(3):
                job.client.chat.completions.create(**CHAT)
            with job.tool("ls"):
                pass
        server.wait_for(lambda server: server.released)
    paths = [request.path for request in server.requests]
    assert paths.count("/v1/agentkv/info") == 1
    assert len(server.tool_events) == 2
    assert len(server.released) == 1


def test_two_keys_of_one_server_are_one_server(server: ScriptedServer) -> None:
    """A job that is called with both is told of once."""
    with agentkv.session() as job:
        for key in ("a", "b"):
            with openai.OpenAI(base_url=server.base_url, api_key=key) as client:
                client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    server.wait_for(lambda server: server.released)
    assert len(server.tool_events) == 2
    assert len(server.released) == 1


class _Elsewhere(httpx.BaseTransport):
    """Brings every request to one server, whatever its URL says: a socket, a private network."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._transport = httpx.HTTPTransport()

    def handle_request(self, request: Any) -> Any:
        request.url = request.url.copy_with(host=self._url.host, port=self._url.port)
        return self._transport.handle_request(request)

    def close(self) -> None:
        self._transport.close()


class _AsyncElsewhere(httpx.AsyncBaseTransport):
    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._transport = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: Any) -> Any:
        request.url = request.url.copy_with(host=self._url.host, port=self._url.port)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


def test_a_transport_of_the_users_own_is_used(server: ScriptedServer) -> None:
    """A private CA, a socket: what calls go by, the question and the feedback go by."""
    http_client = httpx.Client(transport=_Elsewhere(server.root_url))
    with (
        openai.OpenAI(
            base_url="http://nowhere.invalid/v1", api_key="key", http_client=http_client
        ) as client,
        agentkv.session(client, on_missing_server="raise") as job,
    ):
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
        server.wait_for(lambda server: len(server.tool_events) == 2)
    assert server.turns[0].tags


@pytest.mark.asyncio
async def test_an_async_transport_is_asked_by(server: ScriptedServer) -> None:
    """Its feedback needs a loop, and is dropped with one warning where only that leads there."""
    http_client = httpx.AsyncClient(transport=_AsyncElsewhere(server.root_url))
    async with (
        openai.AsyncOpenAI(
            base_url="http://nowhere.invalid/v1", api_key="key", http_client=http_client
        ) as client,
        agentkv.session(client, on_missing_server="raise") as job,
    ):
        calls = (job.client.chat.completions.create(**CHAT) for _ in range(4))
        await asyncio.gather(*calls)
    assert all(turn.tags for turn in server.turns)
    assert [request.path for request in server.requests].count("/v1/agentkv/info") == 1


@pytest.mark.asyncio
async def test_many_tasks_ask_once(server: ScriptedServer, async_client: Any) -> None:
    """The others wait for the answer."""
    with agentkv.session(async_client) as job:
        calls = (job.client.chat.completions.create(**CHAT) for _ in range(8))
        await asyncio.gather(*calls)
    assert [request.path for request in server.requests].count("/v1/agentkv/info") == 1
    assert sum(bool(turn.tags) for turn in server.turns) == 8


class _Dripping(BaseHTTPRequestHandler):
    """Answers calls at once, and questions byte by byte without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.is_over:  # type: ignore[attr-defined]
            self.wfile.write(b" ")
            time.sleep(0.2)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"choices": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dripping_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Dripping)
    server.is_over = False  # type: ignore[attr-defined]
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.is_over = True  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_answer_that_never_ends_costs_one_short_time_out(dripping_url: str) -> None:
    """Each byte comes in time; all of them together have a limit."""
    with (
        openai.OpenAI(base_url=dripping_url, api_key="key") as client,
        agentkv.session(client) as job,
    ):
        started_at_s = time.monotonic()
        job.client.chat.completions.create(**CHAT)
    assert time.monotonic() - started_at_s < CALL_TIMEOUT_S + 5


@pytest.mark.asyncio
async def test_nor_does_it_hold_a_loop(dripping_url: str) -> None:
    """The same on a loop, which goes on meanwhile."""
    async with openai.AsyncOpenAI(base_url=dripping_url, api_key="key") as client:
        with agentkv.session(client) as job:
            started_at_s = time.monotonic()
            await job.client.chat.completions.create(**CHAT)
    assert time.monotonic() - started_at_s < CALL_TIMEOUT_S + 5


def test_a_loop_that_stopped_while_it_asked_costs_others_one_short_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its question stays open for as long as somebody still has the task."""
    loop = asyncio.new_event_loop()
    with ScriptedServer(info_delay_s=60) as server:
        stopped = openai.AsyncOpenAI(base_url=server.base_url, api_key="key")
        task = loop.create_task(_enter(stopped))
        while not server.requests:
            loop.run_until_complete(asyncio.sleep(0.01))
        with openai.OpenAI(base_url=server.base_url, api_key="key") as client:
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


async def _enter(client: openai.AsyncOpenAI) -> None:
    async with agentkv.session(client, on_missing_server="raise"):
        pytest.fail("the session was entered")


@pytest.mark.parametrize("job_id", [".", "..", "a/../b", "ü ?#%2F"])
def test_any_job_id_finds_its_routes(server: ScriptedServer, job_id: str) -> None:
    """No segment of a path is folded away."""
    with (
        openai.OpenAI(base_url=server.base_url, api_key="key") as client,
        agentkv.session(client, job_id=job_id) as job,
    ):
        job.client.chat.completions.create(**CHAT)
    server.wait_for(lambda server: server.released)
    assert server.released == [job_id]
    agentkv.ServerAPI(server.root_url).release(job_id)
    assert server.released == [job_id] * 2


@pytest.mark.parametrize("stream", [False, True])
def test_scripted_tool_calls_arrive_however_they_are_asked_for(stream: bool) -> None:
    """In one piece or streamed."""
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    with (
        ScriptedServer([ScriptedReply("hm", tool_calls=[call])]) as server,
        openai.OpenAI(base_url=server.base_url, api_key="key") as client,
    ):
        if stream:
            with client.chat.completions.stream(**CHAT) as chunks:
                calls = chunks.get_final_completion().choices[0].message.tool_calls
            with client.responses.stream(model="m", input="hi") as events:
                output = events.get_final_response().output
        else:
            calls = client.chat.completions.create(**CHAT).choices[0].message.tool_calls
            output = client.responses.create(model="m", input="hi").output
    assert [call.function.name for call in calls] == ["bash"]
    assert [(item.name, item.call_id) for item in output[1:]] == [("bash", "c")]
