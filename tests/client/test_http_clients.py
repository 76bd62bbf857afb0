"""Requests of HTTP libraries in a session are turns, tagged by headers; replies stay the same."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import inspect
import io
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import openai
import pytest

import agentkv
from tests.scripted_apis import ScriptedReply, ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"job_id": {}}}}
"""Its parameter looks like a tag, and is none."""
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {**CHAT, "tools": [TOOL]},
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


def without_ids(reply: object) -> str:
    """The text of a reply without the ids that the server makes for each."""
    return re.sub(r"[0-9a-f]{32}", "", str(reply))


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
    assert without_ids(reply) == without_ids(plain)
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
    """The caller sees the status, or the library's own error, and leaving does not wait."""
    with ScriptedServer() as server:
        url = f"{server.base_url}/chat/completions"
        with agentkv.session() as job:
            server.fail_next(500, 429)
            statuses = [(await send(url, CHAT))[0] for _ in range(4)]
            assert agentkv.flush(timeout_s=20)
            server.stop()
            started_at_s = time.monotonic()
            with pytest.raises(Exception, match=r".") as caught:
                await send(url, CHAT)
        assert time.monotonic() - started_at_s < 5
        with pytest.raises(caught.type):
            await send(url, CHAT)
    assert statuses == [500, 429, 200, 200]
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 1, 2]
    assert counts(job)[:2] == (2, 3)


@pytest.mark.asyncio
@every_library
@pytest.mark.parametrize(("wanted", "levels"), [("warn", [logging.WARNING]), ("ignore", [])])
async def test_a_server_without_the_plugin_is_warned_of_once(
    send: Send, wanted: Any, levels: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A strict endpoint answers as ever, is asked once behind a request, and gets no feedback."""
    with ScriptedServer(has_plugin=False, is_strict=True) as server:
        for _ in range(2):
            with agentkv.session(on_missing_server=wanted) as job, job.tool("ls"):
                assert (await send(f"{server.base_url}/chat/completions", CHAT))[0] == 200
            assert agentkv.flush(timeout_s=20)
    paths = [request.path for request in server.requests]
    assert sorted(paths) == ["/v1/agentkv/info", *["/v1/chat/completions"] * 2]
    ours = [record.levelno for record in caplog.records if record.name.startswith("agentkv")]
    assert ours == levels


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
async def test_a_request_with_the_jobs_own_id_is_its_turn(send: Send) -> None:
    """A trainer sends its id as X-Session-ID, on its own route too; it is not sent twice."""
    own = {"X-Session-ID": "ours", "thread-id": "its-programs"}
    body = {"token_ids": [1], "sampling_params": {}}
    with ScriptedServer() as server, agentkv.session(job_id="ours") as job:
        await send(f"{server.root_url}/inference/v1/generate", body, headers=own)
    (turn,) = server.turns
    assert (turn.tags["job_id"], turn.tags["turn"]) == ("ours", 1)
    assert turn.headers["x-session-id"] == "ours"
    assert job.summary().turns == 1


@pytest.mark.asyncio
@every_library
async def test_a_turn_that_the_engine_gave_up_comes_back_under_its_number(send: Send) -> None:
    """New weights abort it: the reply has status 200 and says so in its `finish_reason`."""
    replies = [ScriptedReply("o", is_aborted=True), "one", "two"]
    with ScriptedServer(replies) as server, agentkv.session() as job:
        for _ in replies:
            await send(f"{server.base_url}/completions", {"model": "m", "prompt": "one"})
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 2]
    assert counts(job)[:2] == (2, 1)


@pytest.mark.asyncio
@every_library
async def test_other_requests_are_left_alone(send: Send) -> None:
    """Embeddings, services whose routes only end alike, and all without headers, are no turns."""
    paths = ("/v1/embeddings", "/v3/example.org/messages", "/forms/1/responses", "/v1/messages/b")
    with ScriptedServer() as server:
        with agentkv.session() as job:
            for path in paths:
                await send(server.root_url + path, CHAT)
        with agentkv.session(headers=False) as without_headers:
            await send(f"{server.base_url}/chat/completions", CHAT)
        assert agentkv.flush(timeout_s=20)
    assert [request.path for request in server.requests] == [*paths, "/v1/chat/completions"]
    assert not any("x-agentkv-job" in request.headers for request in server.requests)
    assert counts(job)[:2] == counts(without_headers)[:2] == (0, 0)


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
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
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


def kinds() -> dict[str, Callable[[], Any]]:
    """The clients that a session takes, by name."""
    found: dict[str, Callable[[], Any]] = {}
    for module, names in CLIENTS.items():
        if importlib.util.find_spec(module):
            library = importlib.import_module(module)
            found |= {f"{module}.{name}": getattr(library, name) for name in names}
    return found


CLIENTS = {
    "httpx": ("Client", "AsyncClient"),
    "httpx2": ("Client", "AsyncClient"),
    "requests": ("Session",),
}


async def resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", kinds().values(), ids=kinds())
async def test_a_session_takes_http_clients(kind: Callable[[], Any]) -> None:
    """job.client is of the same kind; it and the client are tagged, another client is not."""
    client, other = kind(), kind()
    client.headers["X-Note"] = "n"
    with ScriptedServer() as server:
        url = f"{server.base_url}/chat/completions"
        with agentkv.session(client, job_id="a") as job:
            assert type(job.client) is type(client)
            await resolved(other.post(url, json=CHAT))
            await resolved(client.post(url, json=CHAT))
            await resolved(job.client.post(url, json=CHAT))
            with agentkv.session(job_id="b"):
                await resolved(job.client.post(url, json=CHAT))
        await resolved(client.post(url, json=CHAT))
        await resolved(job.client.post(url, json=CHAT))
        assert agentkv.flush(timeout_s=20)
    for one in (client, other):
        await resolved((getattr(one, "aclose", None) or one.close)())
    tags = [(turn.tags.get("job_id"), turn.tags.get("turn")) for turn in server.turns]
    assert tags == [(None, None), ("a", 1), ("a", 2), ("a", 3), (None, None), (None, None)]
    assert [turn.headers.get("x-note") for turn in server.turns] == [None, *["n"] * 5]
    assert server.requests[-1].headers["x-note"] == "n"
    assert "send" not in vars(client)
    assert counts(job) == (3, 0, (300, 240, 15))


def test_a_session_of_aiohttp_cannot_be_copied_for_a_job() -> None:
    """session(client) says what it takes, and that without a client all are covered."""

    async def enter() -> None:
        aiohttp = pytest.importorskip("aiohttp")
        async with aiohttp.ClientSession() as client:
            with pytest.raises(TypeError, match=r"got ClientSession, .* then all are covered"):
                agentkv.session(client)

    asyncio.run(enter())


@pytest.mark.parametrize("covers_all", [True, False])
def test_an_sdk_over_an_http_client_is_one_turn(covers_all: bool, server: ScriptedServer) -> None:
    """Both layers see the call, one tags it; the SDK's retries have the number of the turn."""
    module = "httpx2" if openai.__version__ >= "3" else "httpx"
    http_client = importlib.import_module(module).Client()
    with agentkv.session(None if covers_all else http_client) as job:
        client = openai.OpenAI(
            base_url=server.base_url, api_key="key", http_client=job.client or http_client
        )
        client.chat.completions.create(**CHAT)
        server.fail_next(500)
        client.chat.completions.create(**CHAT)
        assert len(list(client.chat.completions.create(**CHAT, stream=True))) > 1
    http_client.close()
    assert [turn.tags["turn"] for turn in server.turns] == [1, 2, 2, 3]
    assert ["job_id" in turn.body for turn in server.turns] == [covers_all] * 4
    assert job.summary().turns == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litellm's own
@pytest.mark.asyncio
@pytest.mark.parametrize("model", ["hosted_vllm/m", "openai/m"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_calls_of_litellm_are_turns(
    model: str, is_async: bool, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each provider that ends at vLLM counts, whole and streamed, over either of its transports."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    options = {"model": model, "api_base": server.base_url, "api_key": "key", "max_retries": 0}
    complete = litellm.acompletion if is_async else litellm.completion
    with agentkv.session(job_id="a") as job:
        await resolved(complete(**options, messages=CHAT["messages"]))
        with job.tool("ls"):
            pass
        stream = await resolved(complete(**options, messages=CHAT["messages"], **STREAM))
        assert len([chunk async for chunk in stream] if is_async else list(stream)) > 1
        server.fail_next(400)
        with pytest.raises(litellm.BadRequestError):
            await resolved(complete(**options, messages=CHAT["messages"]))
    assert agentkv.flush(timeout_s=20)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 2, 3]
    assert server.turns[1].tags["last_tool"] == "ls"
    assert {request.headers["x-session-id"] for request in server.requests} == {"a"}
    assert counts(job) == (2, 1, (200, 160, 10))
    assert server.released == ["a"]


@pytest.mark.parametrize("module", ["httpx", "requests"])
def test_a_request_that_is_sent_twice_is_two_turns(module: str, server: ScriptedServer) -> None:
    """The caller's own request object is the same afterwards, so that it can be sent once more."""
    library = pytest.importorskip(module)
    client = library.Client() if module == "httpx" else library.Session()
    if module == "httpx":
        request = client.build_request("POST", f"{server.base_url}/chat/completions", json=CHAT)
    else:
        url = f"{server.base_url}/chat/completions"
        request = client.prepare_request(library.Request("POST", url, json=CHAT))
    before = dict(request.headers)
    with client, agentkv.session():
        client.send(request)
        client.send(request)
    assert dict(request.headers) == before
    assert [turn.tags["turn"] for turn in server.turns] == [1, 2]


def test_a_key_that_is_added_while_sending_is_used_for_feedback() -> None:
    """httpx's `auth=` may send a request twice: that is one turn, and its key is the feedback's."""

    class AskedTwice(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            reply = yield request
            assert reply.status_code == 401
            request.headers["Authorization"] = "Bearer key"
            yield request

    with ScriptedServer(api_key="key") as server:
        with httpx.Client(auth=AskedTwice()) as client, agentkv.session(job_id="a") as job:
            client.post(f"{server.base_url}/chat/completions", json=CHAT)
        assert agentkv.flush(timeout_s=20)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1]
    assert server.released == ["a"]
    assert server.requests[-1].headers["authorization"] == "Bearer key"
    assert counts(job)[:2] == (1, 0)


@pytest.mark.asyncio
@pytest.mark.parametrize("library", ["httpx", "requests", "aiohttp"])
async def test_a_stream_that_its_reader_leaves_is_a_turn(
    library: str, server: ScriptedServer
) -> None:
    """The turn is closed with the response, or when its reader has dropped the rest of it."""
    url, body = f"{server.base_url}/chat/completions", {**CHAT, **STREAM}
    with agentkv.session(on_missing_server="ignore") as job:
        if library == "httpx":
            with httpx.stream("POST", url, json=body) as reply:
                next(reply.iter_lines())
            assert job.summary().turns == 1
            with httpx.stream("POST", url, json=body):
                assert job.summary().turns == 1
        elif library == "requests":
            requests = pytest.importorskip("requests")
            with requests.post(url, json=body, stream=True) as reply:
                next(reply.iter_lines())
                assert job.summary().turns == 1
            with requests.post(url, json=body, stream=True):
                assert job.summary().turns == 1
        else:
            aiohttp = pytest.importorskip("aiohttp")
            async with aiohttp.ClientSession() as client:
                async with client.post(url, json=body) as reply:
                    await reply.content.readline()
                    assert job.summary().turns == 0
                async with client.post(url, json=body):
                    assert job.summary().turns == 1
    assert job.summary().turns == 2


@pytest.mark.asyncio
async def test_every_reader_of_aiohttp_is_watched(server: ScriptedServer) -> None:
    """Each way to read a body gives what it gives without us, and the usage is found."""
    aiohttp = pytest.importorskip("aiohttp")

    async def joined(pieces: Any) -> bytes:
        return b"".join([p[0] if isinstance(p, tuple) else p async for p in pieces])

    async def read_until_end(read: Callable[[], Awaitable[Any]]) -> AsyncIterator[Any]:
        for _ in range(99):
            yield await read()

    readers: tuple[Callable[[Any], Awaitable[bytes]], ...] = (
        lambda content: joined(read_until_end(content.readline)),
        lambda content: joined(read_until_end(content.readany)),
        lambda content: joined(read_until_end(content.readchunk)),
        lambda content: joined(content.iter_chunks()),
        lambda content: joined(content.iter_chunked(7)),
        lambda content: joined(content.iter_any()),
        lambda content: content.read(),
    )
    url, body = f"{server.base_url}/chat/completions", {**CHAT, **STREAM}
    async with aiohttp.ClientSession() as client:
        async with client.post(url, json=body) as reply:
            plain = await reply.read()
        for read in readers:
            with agentkv.session() as job:
                async with client.post(url, json=body) as reply:
                    assert without_ids(await read(reply.content)) == without_ids(plain), read
            assert counts(job) == (1, 0, USAGE), read
    await asyncio.to_thread(agentkv.flush, 20)


def test_odd_bodies_go_out_as_they_are(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Bodies that are streams, text or no JSON are sent as ever, and are turns."""
    url, data = f"{server.base_url}/chat/completions", json.dumps(CHAT).encode()
    requests = pytest.importorskip("requests")
    with agentkv.session():
        for body in (data.decode(), io.BytesIO(data), b'no "job_id" in JSON'):
            requests.post(url, data=body)
        httpx.post(url, content=iter([data]), headers={"Content-Length": str(len(data))})
        assert agentkv.flush(timeout_s=20)
    assert [turn.tags.get("turn") for turn in server.turns] == [1, 2, 3]
    assert caplog.records == []
