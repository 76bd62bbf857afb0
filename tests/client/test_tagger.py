"""Every way to ask a model over httpx is one turn, tagged by headers; the reply stays the same."""

import asyncio
import gc
import importlib
import inspect
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.protocol import TAG_FIELDS, parse_header_tags
from tests.scripted_apis import ScriptedReply, ScriptedServer

# Below the SDK's next major is the next major of its HTTP client, under another name.
HTTP: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")

TEXT = '{"word": "two"}'
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
TEXT_IN: dict[str, Any] = {"model": "m", "prompt": "one"}
RESPONSE: dict[str, Any] = {"model": "m", "input": "one"}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 9}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Answer(pydantic.BaseModel):
    """The structured output that the model is asked for."""

    word: str


async def resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    if hasattr(manager, "__aenter__"):
        async with manager as value:
            yield value
    else:
        with manager as value:
            yield value


async def read_whole(reply: Any) -> object:
    """A parsed or raw reply: its type shows whether we changed it."""
    return type(await resolved(reply))


async def items_of(stream: Any, *, is_async: bool) -> list[Any]:
    return [item async for item in stream] if is_async else list(stream)


async def read_stream(reply: Any) -> object:
    """A stream, also if it must be parsed out of a raw reply, as gateways built on the SDK do."""
    stream = await resolved(reply)
    stream = stream.parse() if hasattr(stream, "parse") else stream
    items = await items_of(stream, is_async=hasattr(stream, "__aiter__"))
    return [event.model_dump() for event in items]


async def read_manager(reply: Any) -> object:
    """The SDK's stream() helpers, which send the request when they are entered."""
    async with entered(reply) as stream:
        return type(await resolved(stream.until_done()))


async def read_bytes(reply: Any) -> object:
    """with_streaming_response: the caller reads the body."""
    async with entered(reply) as response:
        return await resolved(response.read())


RAW, BYTES, CHATS = "with_raw_response", "with_streaming_response", "chat.completions"
WAYS: tuple[tuple[Callable[[Any], Any], str, dict[str, Any]], ...] = (
    (read_whole, f"{CHATS}.create", CHAT),
    (read_whole, f"{CHATS}.parse", {**CHAT, "response_format": Answer}),
    (read_whole, f"{RAW}.{CHATS}.create", CHAT),
    (read_whole, "completions.create", TEXT_IN),
    (read_whole, "responses.parse", {**RESPONSE, "text_format": Answer}),
    (read_whole, f"responses.{RAW}.create", RESPONSE),
    (read_stream, f"{CHATS}.create", {**CHAT, **STREAM}),
    (read_stream, "completions.create", {**TEXT_IN, **STREAM}),
    (read_stream, f"{CHATS}.{RAW}.create", {**CHAT, **STREAM}),
    (read_stream, "responses.create", {**RESPONSE, "stream": True}),
    (read_manager, f"{CHATS}.stream", CHAT),
    (read_manager, "responses.stream", RESPONSE),
    (read_bytes, f"{CHATS}.{BYTES}.create", {**CHAT, **STREAM}),
    (read_bytes, f"responses.{BYTES}.create", RESPONSE),
    (read_whole, "messages.create", MESSAGE),
    (read_stream, "messages.create", {**MESSAGE, "stream": True}),
    (read_manager, "messages.stream", MESSAGE),
    (read_bytes, f"messages.{BYTES}.create", {**MESSAGE, "stream": True}),
)


def ask(client: Any, path: str = f"{CHATS}.create", options: Any = CHAT, **more: Any) -> Any:
    return attrgetter(path)(client)(**options, **more)


def counts(job: agentkv.Job[Any]) -> tuple[int, int]:
    summary = job.summary()
    return summary.turns, summary.failed_calls


def numbers(server: ScriptedServer) -> list[int | None]:
    return [turn.tags.get("turn") for turn in server.turns]


@pytest.mark.asyncio
@pytest.mark.parametrize("has_client", [True, False], ids=["own client", "any client"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("read", "path", "options"), WAYS, ids=[f"{read.__name__}-{path}" for read, path, _ in WAYS]
)
async def test_every_way_to_ask_is_one_turn_and_gives_the_same_reply(
    read: Callable[[Any], Any],
    path: str,
    options: dict[str, Any],
    is_async: bool,
    has_client: bool,
    client: OpenAI,
    async_client: AsyncOpenAI,
) -> None:
    """Headers go out, the body stays, and the caller gets what it gets without a session."""
    with ScriptedServer([ScriptedReply(TEXT, delay_s=0.02)]) as server:
        chosen: Any = (async_client if is_async else client).with_options(base_url=server.base_url)
        if "messages" in path:
            anthropic = pytest.importorskip("anthropic")
            kind = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
            chosen = kind(base_url=server.root_url, api_key="key")
        plain = await read(ask(chosen, path, options))
        async with agentkv.session(chosen if has_client else None, job_id="a") as job:
            reply = await read(ask(job.client or chosen, path, options))
        if "messages" in path:
            await resolved(chosen.close())
        assert agentkv.flush(timeout_s=20)
    first, turn = server.turns
    assert turn.tags == {"job_id": "a", "turn": 1}
    assert turn.body == first.body
    assert counts(job) == (1, 0)
    assert 0.02 <= job.summary().llm_s < 10
    assert re.sub("[0-9a-f]{32}", "", str(reply)) == re.sub("[0-9a-f]{32}", "", str(plain))
    assert server.released == ["a"]


def test_tags_are_headers_and_nothing_else_changes(server: ScriptedServer, client: OpenAI) -> None:
    """Each tag has one, percent-encoded where a header cannot hold it; the rest is a plain call."""
    options: dict[str, Any] = {"extra_body": {"top_k": 5}, "extra_headers": {"X-Note": "n"}}
    with (
        agentkv.session(job_id="työ"),
        agentkv.session(client, job_id="a", expected_turns=9) as job,
    ):
        with job.tool("echo ä"):
            pass
        job.last_step()
        ask(job.client, **options)
    ask(client, **options)
    tagged, plain = server.turns
    added = {*tagged.headers.items()} - {*plain.headers.items()}
    assert all(name.startswith(("x-agentkv-", "x-session-id")) for name, _ in added)
    assert plain.headers.keys() < tagged.headers.keys()
    tags = parse_header_tags(tagged.headers).as_fields()
    assert tags.keys() == set(TAG_FIELDS) - {"max_ttl_s"}
    assert (tags["parent_job_id"], tags["last_tool"]) == ("työ", "echo ä")


@pytest.mark.parametrize(
    ("path", "is_turn"),
    [
        ("/v1/chat/completions", True),
        ("/openai/deployments/m/chat/completions?api-version=1", True),
        ("/v1/messages", True),
        ("/inference/v1/generate", True),
        ("/v1/embeddings", False),
        ("/example.org/messages", False),
        ("/forms/1/responses", False),
        ("/v1/messages/b", False),
    ],
)
def test_requests_to_models_alone_are_turns(
    path: str, is_turn: bool, server: ScriptedServer
) -> None:
    """Other traffic is left alone: embeddings, and routes of others that end alike."""
    with agentkv.session(on_missing_server="ignore"):
        httpx.post(server.root_url + path, json=CHAT)
        httpx.get(f"{server.root_url}/v1/models")
    assert ["x-agentkv-job" in request.headers for request in server.requests[:2]] == [
        is_turn,
        False,
    ]


@pytest.mark.parametrize("name", ["X-Session-ID", "x-agentkv-job"])
def test_a_header_that_names_another_job_stands(name: str, server: ScriptedServer) -> None:
    """That request is left alone; one with this job's own X-Session-ID, as trainers send it next to
    other ids, is its turn."""
    url = f"{server.root_url}/inference/v1/generate"
    with agentkv.session(job_id="ours") as job:
        httpx.post(url, json={}, headers={name: "by-hand"})
        httpx.post(url, json={}, headers={"X-Session-ID": "ours", "thread-id": "its-programs"})
    tags = [(turn.tags["job_id"], turn.tags.get("turn")) for turn in server.turns]
    assert tags == [("by-hand", None), ("ours", 1)]
    assert counts(job) == (1, 0)


def test_a_retry_has_the_number_of_the_turn(server: ScriptedServer, client: OpenAI) -> None:
    """The server takes a repeated number for a retry, be it the SDK's or the agent's own."""
    server.fail_next(500, 503)
    with agentkv.session(client) as job:
        ask(job.client)
        server.fail_next(400)
        with pytest.raises(openai.BadRequestError):
            ask(job.client)
        ask(job.client)
    assert numbers(server) == [1, 1, 1, 2, 2]
    assert counts(job) == (2, 3)


def test_a_login_is_the_same_turn() -> None:
    """httpx sends a request again by itself; the key that `auth=` adds is the reports' key."""

    class AskedTwice(httpx.Auth):
        def auth_flow(self, request: httpx.Request) -> Any:
            reply = yield request
            if reply.status_code == 401:
                request.headers["Authorization"] = "Bearer key"
                yield request

    with ScriptedServer(api_key="key") as server, httpx.Client(auth=AskedTwice()) as client:
        with agentkv.session(job_id="a") as job:
            client.post(f"{server.base_url}/chat/completions", json=CHAT)
        assert agentkv.flush(timeout_s=20)
    assert numbers(server) == [1, 1]
    assert server.released == ["a"]
    assert counts(job) == (1, 0)


def test_a_request_that_is_sent_twice_is_two_turns(server: ScriptedServer) -> None:
    """The caller's own request object is the same afterwards, also if its body is a stream."""
    with httpx.Client() as client, agentkv.session():
        request = client.build_request("POST", f"{server.base_url}/chat/completions", json=CHAT)
        before = dict(request.headers)
        client.send(request)
        client.send(request)
        assert dict(request.headers) == before
        length = {"Content-Length": str(len(request.content))}
        client.post(request.url, content=iter([request.content]), headers=length)
    assert numbers(server) == [1, 2, 3]


@pytest.mark.asyncio
async def test_a_stream_ends_its_turn_when_it_is_closed_or_dropped(
    server: ScriptedServer, client: OpenAI, async_client: AsyncOpenAI
) -> None:
    """Read to its end, closed early, left by its reader, or cancelled: each is one turn."""
    url, body = f"{server.base_url}/chat/completions", {**CHAT, **STREAM}
    with agentkv.session(client) as job:
        stream = ask(job.client, stream=True)
        assert counts(job) == (0, 0)
        with stream:
            next(iter(stream))
        assert counts(job) == (1, 0)
    with agentkv.session() as job:
        with httpx.stream("POST", url, json=body) as reply:
            next(reply.iter_lines())
        assert counts(job) == (1, 0)
        ask(client, stream=True)  # nobody holds it
        gc.collect()
        assert counts(job) == (2, 0)

        async def read_for_ever() -> None:
            async for _ in await ask(async_client, stream=True):
                await asyncio.sleep(60)

        task = asyncio.create_task(read_for_ever())
        await asyncio.to_thread(server.wait_for, lambda server: len(server.turns) == 4)
        await asyncio.sleep(0.05)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        del task
        for _ in range(40):  # the loop closes what the collector found
            gc.collect()
            await asyncio.sleep(0.05)
            if counts(job) == (3, 0):
                return
        pytest.fail("the dropped stream is open still")


def test_a_stream_that_breaks_off_raises_as_without_us(client: OpenAI) -> None:
    """The caller gets the SDK's own error, and the job can go on."""

    def read(client: OpenAI) -> str:
        with pytest.raises(Exception, match=r"peer closed|Connection error") as caught:
            list(ask(client, stream=True))
        return type(caught.value).__name__

    with ScriptedServer([ScriptedReply("one two three", cut_after_events=1)]) as server:
        client = client.with_options(base_url=server.base_url)
        plain = read(client)
        with agentkv.session(client) as job:
            assert read(job.client) == plain
    assert counts(job) == (1, 0)


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_is_no_turn(async_client: AsyncOpenAI) -> None:
    """Its number is used again, since the server may not have begun it."""
    with ScriptedServer([ScriptedReply(delay_s=60), ScriptedReply()]) as server:
        client = async_client.with_options(base_url=server.base_url)
        async with agentkv.session(client) as job:
            call = asyncio.create_task(ask(job.client))
            await asyncio.to_thread(server.wait_for, lambda server: server.turns)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await ask(job.client)
            assert counts(job) == (1, 1)
        assert agentkv.flush(timeout_s=20)
    assert numbers(server) == [1, 1]


@pytest.mark.asyncio
async def test_a_failure_of_ours_leaves_the_request_untouched(
    server: ScriptedServer,
    client: OpenAI,
    async_client: AsyncOpenAI,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error inside of agentkv is logged once per process, and the agent gets its replies."""
    monkeypatch.setattr("agentkv.client.patches._has_logged_failure", False)
    for chosen in (client, async_client):
        with agentkv.session(chosen) as job, monkeypatch.context() as broken:
            broken.setattr(job, "begin_turn", None)
            await resolved(ask(job.client))
    with agentkv.session(), httpx.Client() as http_client, pytest.raises(TypeError):
        http_client.send()  # type: ignore[call-arg]
    assert [turn.tags for turn in server.turns] == [{}, {}]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "could not tag a request" in caplog.text


@pytest.mark.parametrize("has_client", [True, False], ids=["own client", "any client"])
def test_a_call_passes_four_files_before_the_network(has_client: bool) -> None:
    """tagger, context, job and protocol: who reads them knows what happens to a call."""
    files: set[str] = set()

    def note(frame: Any, event: str, argument: object) -> None:
        files.add(frame.f_code.co_filename)

    def answer(request: Any) -> Any:
        sys.setprofile(None)
        return HTTP.Response(400)

    http_client = HTTP.Client(transport=HTTP.MockTransport(answer))
    client = OpenAI(base_url="http://a/v1", api_key="k", max_retries=0, http_client=http_client)
    with agentkv.session(client if has_client else None, on_missing_server="ignore") as job:
        sys.setprofile(note)
        with pytest.raises(openai.BadRequestError):
            ask(job.client or client)
    ours = str(Path(agentkv.__file__).parent)
    names = {name.removeprefix(ours) for name in files if name.startswith(ours)}
    client_files = {f"/client/{name}.py" for name in ("tagger", "context", "job")}
    assert names == {*client_files, "/protocol/__init__.py"}


# One client


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_client_itself_is_tagged_while_the_session_is_open(
    is_async: bool, server: ScriptedServer, client: OpenAI, async_client: AsyncOpenAI
) -> None:
    """So are its copies, streams included; then all are as they were, and job.client is plain."""
    chosen: Any = async_client if is_async else client
    await resolved(ask(chosen))
    before = {**vars(chosen._client)}
    with agentkv.session(chosen) as job:
        for one in (chosen, job.client):
            assert type(one) is type(chosen)
            await resolved(ask(one))
            await resolved(ask(one.with_options(timeout=5).copy(max_retries=0)))
            await resolved(ask(one, f"{CHATS}.{RAW}.create"))
        stream = await resolved(ask(chosen, stream=True))
    assert counts(job) == (6, 0)
    assert len(await items_of(stream, is_async=is_async)) > 1
    assert counts(job) == (7, 0)
    assert vars(chosen._client) == before
    for one in (chosen, job.client, job.client.with_options(timeout=5)):
        await resolved(ask(one))
    assert numbers(server) == [None, *range(1, 8), *[None] * 3]


def test_a_bound_client_leaves_the_connections_to_its_owner(
    server: ScriptedServer, client: OpenAI
) -> None:
    """Dropping job.client closes nothing; closing it closes the client that it was made of."""
    with agentkv.session(client) as job:
        ask(job.client)
        twin = job.client
    del job
    with agentkv.session(client):
        pass
    gc.collect()
    ask(client)
    assert not twin.is_closed()
    twin.close()
    assert twin.is_closed()
    assert client.is_closed()


def test_sessions_that_share_a_client_tag_its_calls_by_thread(
    server: ScriptedServer, client: OpenAI
) -> None:
    """Each thread's calls of the client belong to the session it is in, or to none."""
    is_open, may_close = threading.Event(), threading.Event()

    def hold_open() -> None:
        with agentkv.session(client, job_id="a"):
            ask(client)
            is_open.set()
            assert may_close.wait(20)

    thread = threading.Thread(target=hold_open)
    thread.start()
    assert is_open.wait(20)
    ask(client)
    with agentkv.session(client, job_id="b"):
        ask(client)
    may_close.set()
    thread.join()
    assert [turn.tags.get("job_id") for turn in server.turns] == ["a", None, "b"]
    assert "send" not in vars(client._client)


def test_a_send_replaced_by_somebody_else_stays(server: ScriptedServer, client: OpenAI) -> None:
    """A tracer's replacement on the httpx client is called, and is there afterwards."""
    http_client: Any = client._client
    traced: list[str] = []

    def trace(name: str) -> Any:
        send = http_client.send

        def traced_send(request: Any, **options: Any) -> Any:
            if "/agentkv/" not in request.url.path:
                traced.append(name)
            return send(request, **options)

        http_client.send = traced_send
        return traced_send

    outside = trace("outside")
    with agentkv.session(client) as job:
        ask(client)
        ask(job.client)
    assert http_client.send is outside
    with agentkv.session(client):
        inside = trace("inside")
    ask(client)
    assert http_client.send is inside
    assert numbers(server) == [1, 2, None]
    assert traced == ["outside", "outside", "inside", "outside"]


def test_subclasses_of_the_clients_are_followed(server: ScriptedServer) -> None:
    """They are copied without calling their constructors; their methods run around ours."""
    calls = []

    class Counting(OpenAI):  # type: ignore[misc]
        def __init__(self, where: str) -> None:
            super().__init__(base_url=where, api_key="key", max_retries=0)

        def request(self, cast_to: Any, options: Any, **kwargs: Any) -> Any:
            calls.append(options.url)
            return super().request(cast_to, options, **kwargs)

    with (
        Counting(server.base_url) as client,
        agentkv.session() as around,
        agentkv.session(client) as job,
    ):
        assert (type(job.client), job.client.base_url) == (Counting, client.base_url)
        ask(job.client)
    assert calls == ["/chat/completions"]
    assert (counts(job), counts(around)) == ((1, 0), (0, 0))


@pytest.mark.asyncio
@pytest.mark.parametrize("module", ["httpx", "httpx2"])
@pytest.mark.parametrize("name", ["Client", "AsyncClient"])
async def test_a_session_takes_http_clients(module: str, name: str, server: ScriptedServer) -> None:
    """job.client is of the same kind; it and the client are tagged, another client is not, but
    belongs to the session around."""
    kind = getattr(pytest.importorskip(module), name)
    client, other = kind(headers={"X-Note": "n"}), kind()
    url = f"{server.base_url}/chat/completions"
    with agentkv.session(job_id="around"), agentkv.session(client, job_id="a") as job:
        assert isinstance(job.client, kind)
        await resolved(other.post(url, json=CHAT))
        await resolved(client.post(url, json=CHAT))
        with agentkv.session(job_id="b"):
            await resolved(job.client.post(url, json=CHAT))
    await resolved(job.client.post(url, json=CHAT))
    assert await asyncio.to_thread(agentkv.flush, 20)
    for one in (client, other):
        await resolved((getattr(one, "aclose", None) or one.close)())
    tags = [(turn.tags.get("job_id"), turn.tags.get("turn")) for turn in server.turns]
    assert tags == [("around", 1), ("a", 1), ("a", 2), (None, None)]
    assert server.turns[-1].headers["x-note"] == "n"


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
        assert len(await items_of(stream, is_async=is_async)) > 1
        server.fail_next(400)
        with pytest.raises(litellm.BadRequestError):
            await resolved(complete(**options, messages=CHAT["messages"]))
    assert await asyncio.to_thread(agentkv.flush, 20)
    assert numbers(server) == [1, 2, 3]
    assert server.turns[1].tags["last_tool"] == "ls"
    assert {request.headers["x-session-id"] for request in server.requests} == {"a"}
    assert counts(job) == (2, 1)
    assert server.released == ["a"]


def test_others_send_the_headers_of_the_job(server: ScriptedServer) -> None:
    """With requests or curl: the server named by the session hears of tools and the end."""
    requests: Any = importlib.import_module("requests")
    url = f"{server.base_url}/chat/completions"
    with (
        agentkv.session(job_id="lead"),
        agentkv.session(job_id="työ", expected_turns=3, server=server.root_url) as job,
    ):
        requests.post(url, json=CHAT, headers=job.headers)
        with job.tool("ls"):
            pass
    server.wait_for(lambda server: server.released)
    tags = {"job_id": "työ", "parent_job_id": "lead", "expected_turns": 3}
    assert server.turns[0].tags == tags
    assert [event["state"] for _, event in server.tool_events] == ["started", "finished"]
    assert server.released == ["työ"]
