"""Requests of HTTP libraries in a session are turns, tagged by headers; replies stay the same."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

import agentkv
from agentkv.testing import ScriptedReply, ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": CHAT,
    "/completions": {"model": "m", "prompt": "one"},
    "/responses": {"model": "m", "input": "one"},
    "/messages": {**CHAT, "max_tokens": 9},
}
USAGE = (100, 80, 5)

Options = dict[str, Any]
Send = Callable[..., Awaitable[tuple[int, str]]]


def _httpx(module: str) -> Send:
    async def send(url: str, body: Any, **options: Any) -> tuple[int, str]:
        library = pytest.importorskip(module)
        options.setdefault("follow_redirects", True)
        with library.Client(verify=False) as client:
            if not body.get("stream"):
                reply = client.post(url, json=body, **options)
                return reply.status_code, reply.text
            with client.stream("POST", url, json=body, **options) as reply:
                return reply.status_code, "\n".join(reply.iter_lines())

    return send


def _httpx_async(module: str) -> Send:
    async def send(url: str, body: Any, **options: Any) -> tuple[int, str]:
        library = pytest.importorskip(module)
        options.setdefault("follow_redirects", True)
        async with library.AsyncClient(verify=False) as client:
            if not body.get("stream"):
                reply = await client.post(url, json=body, **options)
                return reply.status_code, reply.text
            async with client.stream("POST", url, json=body, **options) as reply:
                return reply.status_code, "\n".join([line async for line in reply.aiter_lines()])

    return send


async def _requests(url: str, body: Any, **options: Any) -> tuple[int, str]:
    requests = pytest.importorskip("requests")
    reply = requests.post(url, json=body, stream=bool(body.get("stream")), **options)
    if body.get("stream"):
        return reply.status_code, "\n".join(line.decode() for line in reply.iter_lines())
    return reply.status_code, reply.text


async def _aiohttp(url: str, body: Any, **options: Any) -> tuple[int, str]:
    aiohttp = pytest.importorskip("aiohttp")
    async with aiohttp.ClientSession() as session, session.post(url, json=body, **options) as reply:
        if body.get("stream"):
            return reply.status, "\n".join([line.decode() async for line in reply.content])
        return reply.status, await reply.text()


SENDERS: dict[str, Send] = {
    "httpx": _httpx("httpx"),
    "httpx-async": _httpx_async("httpx"),
    "httpx2": _httpx("httpx2"),
    "httpx2-async": _httpx_async("httpx2"),
    "requests": _requests,
    "aiohttp": _aiohttp,
}
every_library = pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)


def counts(job: agentkv.Job[Any]) -> tuple[int, int, tuple[int | None, ...]]:
    summary = job.summary()
    tokens = (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens)
    return summary.turns, summary.failed_calls, tokens


@pytest.mark.asyncio
@every_library
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
async def test_each_request_to_a_model_is_a_turn_and_gives_the_same_reply(
    send: Send, path: str, stream: Options
) -> None:
    """Headers go out, the body stays, the usage is read, and the caller gets what it would get."""
    body = {**BODIES[path], **stream}
    with ScriptedServer([ScriptedReply(delay_s=0.01)]) as server:
        plain = await send(server.base_url + path, body)
        with agentkv.session(job_id="a") as job:
            reply = await send(server.base_url + path, body)
        assert agentkv.flush(timeout_s=20)
    assert reply == plain
    turn = server.turns[-1]
    assert turn.tags == {"job_id": "a", "turn": 1}
    assert turn.body == body
    assert counts(job) == (1, 0, USAGE)
    assert 0.01 <= job.summary().llm_s < 10
    assert server.released == ["a"]


@pytest.mark.asyncio
@every_library
async def test_feedback_has_the_key_and_the_session_id_of_the_calls(send: Send) -> None:
    """The question, both tool events and the release are sent as the job's requests were."""
    with ScriptedServer(api_key="key") as server:
        url, key = f"{server.base_url}/chat/completions", {"Authorization": "Bearer key"}
        with agentkv.session(job_id="a") as job:
            await send(url, CHAT, headers=key)
            with job.tool("make test"):
                pass
            await send(url, CHAT, headers=key)
        assert agentkv.flush(timeout_s=20)
    assert [event["state"] for _, event in server.tool_events] == ["started", "finished"]
    assert server.released == ["a"]
    assert len(server.requests) == 6
    assert {request.headers["x-session-id"] for request in server.requests} == {"a"}
    assert server.turns[1].tags["last_tool"] == "make test"


@pytest.mark.asyncio
@every_library
async def test_no_request_waits_for_the_server_to_be_asked(send: Send) -> None:
    """Whether the plugin is there is asked in the background: headers are safe anywhere."""
    with ScriptedServer(info_delay_s=60, is_strict=True) as server:
        with agentkv.session():
            started_at_s = time.monotonic()
            status, _ = await send(f"{server.base_url}/chat/completions", CHAT)
            assert time.monotonic() - started_at_s < 2
        server.wait_for(lambda server: len(server.requests) == 2)
    assert status == 200
    assert agentkv.flush(timeout_s=20)


@pytest.mark.asyncio
@every_library
async def test_a_failed_request_gives_its_number_to_the_next(send: Send) -> None:
    """The server takes a repeated number for a retry; the caller sees the status as ever."""
    with ScriptedServer() as server, agentkv.session() as job:
        server.fail_next(500, 429)
        url = f"{server.base_url}/chat/completions"
        statuses = [(await send(url, CHAT))[0] for _ in range(4)]
        assert agentkv.flush(timeout_s=20)
    assert statuses == [500, 429, 200, 200]
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 1, 2]
    assert counts(job)[:2] == (2, 2)


@pytest.mark.asyncio
@every_library
async def test_a_dead_server_fails_as_without_agentkv(send: Send) -> None:
    """The caller gets the library's own error, and leaving the session does not wait."""
    with ScriptedServer() as server:
        url = f"{server.base_url}/chat/completions"
    with pytest.raises(Exception, match=r".") as plain:
        await send(url, CHAT)
    started_at_s = time.monotonic()
    with agentkv.session() as job:
        with job.tool("ls"):
            pass
        with pytest.raises(plain.type):
            await send(url, CHAT)
    assert time.monotonic() - started_at_s < 5
    assert counts(job)[:2] == (0, 1)


@pytest.mark.asyncio
@every_library
async def test_a_server_without_the_plugin_is_warned_of_once(
    send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """A strict endpoint answers as ever, gets no feedback, and one warning says why."""
    with ScriptedServer(has_plugin=False, is_strict=True) as server:
        url = f"{server.base_url}/chat/completions"
        for _ in range(2):
            with agentkv.session() as job:
                assert (await send(url, CHAT))[0] == 200
                assert agentkv.flush(timeout_s=20)
                with job.tool("ls"):
                    pass
                assert (await send(url, CHAT))[0] == 200
        assert agentkv.flush(timeout_s=20)
    assert [request.path for request in server.requests].count("/v1/agentkv/info") == 1
    assert len(server.requests) == 5
    ours = [record for record in caplog.records if record.name.startswith("agentkv")]
    assert [record.levelno for record in ours] == [logging.WARNING]


@pytest.mark.asyncio
@every_library
async def test_a_missing_plugin_can_be_an_error(send: Send) -> None:
    """With on_missing_server="raise" the server is asked before the first request is sent."""
    with (
        ScriptedServer(has_plugin=False) as server,
        agentkv.session(on_missing_server="raise"),
        pytest.raises(agentkv.AgentKVServerError, match="no agentkv plugin"),
    ):
        await send(f"{server.base_url}/chat/completions", CHAT)
    assert server.turns == []


@pytest.mark.asyncio
@every_library
@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {"X-Session-ID": "by-hand"}),
        ({}, {"x-agentkv-job": "by-hand"}),
        ({"job_id": "by-hand"}, {}),
        ({"vllm_xargs": {"job_id": "by-hand"}}, {}),
        ({"session_id": "by-hand"}, {}),
    ],
    ids=str,
)
async def test_a_request_that_names_a_job_is_left_alone(
    fields: Options, headers: dict[str, str], send: Send
) -> None:
    """A job in a header or in the body, in any form that the server reads, stays the only one."""
    with ScriptedServer() as server, agentkv.session(job_id="ours") as job:
        await send(f"{server.base_url}/chat/completions", {**CHAT, **fields}, headers=headers)
    assert "ours" not in str(server.turns[0])
    assert job.summary().turns == 0


@pytest.mark.asyncio
@every_library
async def test_a_tool_with_a_parameter_of_that_name_is_no_tag(send: Send) -> None:
    """The text "job_id" deeper in a body, as in the schema of a tool, is not read as a job."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"job_id": {}}}}
    with ScriptedServer() as server, agentkv.session(job_id="ours"):
        await send(f"{server.base_url}/chat/completions", {**CHAT, "tools": [tool]})
        assert agentkv.flush(timeout_s=20)
    assert server.turns[0].tags["job_id"] == "ours"


@pytest.mark.asyncio
@every_library
async def test_other_requests_are_left_alone(send: Send) -> None:
    """Embeddings, and services whose routes only end alike, are neither tagged nor counted."""
    paths = ("/v1/embeddings", "/v3/example.org/messages", "/forms/1/responses", "/v1/messages/b")
    with ScriptedServer() as server, agentkv.session() as job:
        for path in paths:
            await send(server.root_url + path, CHAT)
    assert [request.path for request in server.requests] == [*paths]
    assert not any("x-agentkv-job" in request.headers for request in server.requests)
    assert counts(job)[:2] == (0, 0)


@contextmanager
def front(answer: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[str]:
    """A server of our own for what the scripted one does not do; gives its root URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self, self.rfile.read(int(self.headers.get("content-length") or 0)))

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.asyncio
@every_library
async def test_a_redirect_is_the_same_turn(send: Send) -> None:
    """A client that is sent elsewhere takes the tags along, and the turn counts once."""
    with ScriptedServer() as server:

        def redirect(handler: BaseHTTPRequestHandler, _: bytes) -> None:
            handler.send_response(307)
            handler.send_header("location", server.root_url + handler.path)
            handler.send_header("content-length", "0")
            handler.end_headers()

        with front(redirect) as url, agentkv.session(job_id="a", on_missing_server="ignore") as job:
            for _ in range(2):
                assert (await send(f"{url}/v1/chat/completions", CHAT))[0] == 200
            assert agentkv.flush(timeout_s=20)
    assert [turn.tags for turn in server.turns] == [
        {"job_id": "a", "turn": 1},
        {"job_id": "a", "turn": 2},
    ]
    assert counts(job) == (2, 0, (200, 160, 10))


@pytest.mark.asyncio
@every_library
@pytest.mark.parametrize("stream", [{}, STREAM], ids=["whole", "stream"])
async def test_a_compressed_reply_is_read(send: Send, stream: Options) -> None:
    """The usage is found in the bytes as the library decodes them."""
    usage = {"prompt_tokens": 70, "completion_tokens": 9}
    document = json.dumps({"choices": [], "usage": usage}).encode()

    def zip_up(handler: BaseHTTPRequestHandler, _: bytes) -> None:
        text = b"data: " + document + b"\n\ndata: [DONE]\n\n" if stream else document
        handler.send_response(200)
        handler.send_header("content-encoding", "gzip")
        handler.end_headers()
        handler.wfile.write(gzip.compress(text))

    with front(zip_up) as url:
        with agentkv.session(on_missing_server="ignore") as job:
            await send(f"{url}/v1/chat/completions", {**CHAT, **stream})
        assert agentkv.flush(timeout_s=20)
    assert counts(job) == (1, 0, (70, None, 9))
