"""Every way to ask the SDK for a reply is tagged, read, and passed on unchanged."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.protocol import TAG_FIELDS, parse_header_tags, parse_tags
from agentkv.protocol.foreign import READ_HEADERS
from tests.scripted_apis import ScriptedReply, ScriptedServer

TEXT = '{"word": "two"}'
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
TEXT_IN: dict[str, Any] = {"model": "m", "prompt": "one"}
RESPONSE: dict[str, Any] = {"model": "m", "input": "one"}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 9}
WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
STREAM: dict[str, Any] = {"stream": True, **WITH_USAGE}


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


async def read_stream(reply: Any) -> object:
    """A stream, also if it must be parsed out of a raw reply, as gateways built on the SDK do."""
    stream = await resolved(reply)
    stream = stream.parse() if hasattr(stream, "parse") else stream
    if hasattr(stream, "__aiter__"):
        return [event.model_dump() async for event in stream]
    return [event.model_dump() for event in stream]


async def read_manager(reply: Any) -> object:
    """The SDK's stream() helpers, which send the request when they are entered."""
    async with entered(reply) as stream:
        return type(await resolved(stream.until_done()))


async def read_bytes(reply: Any) -> object:
    """with_streaming_response: the caller reads the body."""
    async with entered(reply) as response:
        return await resolved(response.read())


Way = tuple[Callable[[Any], Any], str, dict[str, Any]]
RAW, BYTES = "with_raw_response", "with_streaming_response"
CHATS, TEXTS = "chat.completions", "completions"
WAYS: tuple[Way, ...] = (
    (read_whole, f"{CHATS}.create", CHAT),
    (read_whole, f"{CHATS}.parse", {**CHAT, "response_format": Answer}),
    (read_whole, f"{CHATS}.{RAW}.create", CHAT),
    (read_whole, f"{RAW}.{CHATS}.create", CHAT),
    (read_whole, f"{TEXTS}.create", TEXT_IN),
    (read_whole, f"{TEXTS}.{RAW}.create", TEXT_IN),
    (read_whole, "responses.create", RESPONSE),
    (read_whole, "responses.parse", {**RESPONSE, "text_format": Answer}),
    (read_whole, f"responses.{RAW}.create", RESPONSE),
    (read_stream, f"{CHATS}.create", {**CHAT, **STREAM}),
    (read_stream, f"{TEXTS}.create", {**TEXT_IN, **STREAM}),
    (read_stream, "responses.create", {**RESPONSE, "stream": True}),
    (read_stream, f"{CHATS}.{RAW}.create", {**CHAT, **STREAM}),
    (read_stream, f"responses.{RAW}.create", {**RESPONSE, "stream": True}),
    (read_manager, f"{CHATS}.stream", {**CHAT, **WITH_USAGE}),
    (read_manager, "responses.stream", RESPONSE),
    (read_bytes, f"{CHATS}.{BYTES}.create", CHAT),
    (read_bytes, f"{CHATS}.{BYTES}.create", {**CHAT, **STREAM}),
    (read_bytes, f"{TEXTS}.{BYTES}.create", TEXT_IN),
    (read_bytes, f"responses.{BYTES}.create", RESPONSE),
    (read_whole, "messages.create", MESSAGE),
    (read_whole, "beta.messages.create", MESSAGE),
    (read_whole, f"messages.{RAW}.create", MESSAGE),
    (read_stream, "messages.create", {**MESSAGE, "stream": True}),
    (read_manager, "messages.stream", MESSAGE),
    (read_bytes, f"messages.{BYTES}.create", {**MESSAGE, "stream": True}),
)


def without_ids(reply: object) -> str:
    """The text of a reply without the ids that the server makes for each."""
    return re.sub(r"[0-9a-f]{32}", "", str(reply))


def ask(client: Any, path: str, options: dict[str, Any]) -> Any:
    return attrgetter(path)(client)(**options)


@pytest.fixture
def server() -> Any:
    with ScriptedServer([ScriptedReply(TEXT, delay_s=0.02)]) as server:
        yield server
        assert agentkv.flush(timeout_s=20)


def assert_one_turn_was_read(server: ScriptedServer, job: agentkv.Job[Any]) -> None:
    turn = server.turns[-1]
    assert turn.tags == {"job_id": job.job_id, "turn": 1}
    assert turn.body.items() > turn.tags.items()
    summary = job.summary()
    assert (summary.turns, summary.failed_calls) == (1, 0)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (100, 80, 5)
    assert 0.02 <= summary.llm_s < 10


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
    server: ScriptedServer,
    client: OpenAI,
    async_client: AsyncOpenAI,
) -> None:
    """Tags go out, the usage is read, and the caller gets what it gets without a session."""
    chosen: Any = async_client if is_async else client
    if "messages" in path:
        anthropic = pytest.importorskip("anthropic")
        kind = anthropic.AsyncAnthropic if is_async else anthropic.Anthropic
        chosen = kind(base_url=server.root_url, api_key="key")
    plain = await read(ask(chosen, path, options))
    async with agentkv.session(chosen if has_client else None) as job:
        reply = await read(ask(job.client or chosen, path, options))
    if "messages" in path:
        await resolved(chosen.close())
    assert_one_turn_was_read(server, job)
    assert without_ids(reply) == without_ids(plain)


def test_bytes_cut_by_the_caller_are_read_to_the_last(
    server: ScriptedServer, client: OpenAI
) -> None:
    """httpx closes a response before it hands out the rest of a chunk; the usage is still found."""
    with agentkv.session(client) as job, ask(job.client, f"{CHATS}.{BYTES}.create", CHAT) as reply:
        assert list(reply.iter_bytes(chunk_size=100_000))
    assert_one_turn_was_read(server, job)


def test_a_stream_closed_early_is_a_turn(server: ScriptedServer, client: OpenAI) -> None:
    """A closed stream is counted at once, also while a reader of it is still referenced."""
    with agentkv.session(client) as job:
        stream = job.client.chat.completions.create(**CHAT, stream=True)
        assert job.summary().turns == 0
        with stream:
            next(iter(stream))
        assert job.summary().turns == 1
        with ask(job.client, f"{CHATS}.{BYTES}.create", {**CHAT, **STREAM}) as reply:
            chunks = reply.iter_bytes(chunk_size=10)
            next(chunks)
            reply.close()
            assert job.summary().turns == 2


def test_a_stream_without_usage_leaves_the_tokens_unknown(
    server: ScriptedServer, client: OpenAI
) -> None:
    """The options of the caller's stream are not changed to find the usage out."""
    with agentkv.session(client) as job:
        list(job.client.chat.completions.create(**CHAT, stream=True))
    assert "stream_options" not in server.turns[0].body
    assert job.summary().turns == job.summary().turns_without_usage == 1
    assert job.summary().prompt_tokens is None


def test_a_stream_that_breaks_off_raises_as_without_us(client: OpenAI) -> None:
    """The caller gets the SDK's own error, and the job can go on."""
    broken = ScriptedReply("one two three", cut_after_events=1)

    def read(client: OpenAI) -> str:
        with pytest.raises(Exception, match=r"peer closed|Connection error") as caught:
            list(client.chat.completions.create(**CHAT, stream=True))
        return type(caught.value).__name__

    with (
        ScriptedServer([broken]) as server,
        client.with_options(base_url=server.base_url) as client,
    ):
        plain = read(client)
        with agentkv.session(client) as job:
            assert read(job.client) == plain
    assert job.summary().turns == 1


def test_a_session_adds_its_tags_and_changes_nothing_else(
    server: ScriptedServer, client: OpenAI
) -> None:
    """Body and headers are those of a plain request; the caller's own extra_body wins."""
    extra = {"top_k": 5, "turn": 77}
    options: dict[str, Any] = {"extra_body": extra, "extra_headers": {"X-Note": "n"}}
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT, temperature=0, **options)
    client.chat.completions.create(**CHAT, temperature=0, **options)
    assert options == {"extra_body": {"top_k": 5, "turn": 77}, "extra_headers": {"X-Note": "n"}}
    tagged, plain = server.turns
    assert tagged.body == {**plain.body, "job_id": "a"}
    changed = {*tagged.headers.items()} - {*plain.headers.items()}
    assert changed - {("content-length", tagged.headers["content-length"])} == {
        ("x-session-id", "a"),
        ("x-agentkv-job", "a"),
        ("x-agentkv-turn", "1"),
    }
    assert plain.headers.keys() < tagged.headers.keys()


@pytest.mark.parametrize(
    "by_hand",
    [
        {"extra_body": {"job_id": "by-hand"}},
        {"extra_body": {"vllm_xargs": {"job_id": "by-hand"}}},
        {"extra_body": {"extra_body": {"job_id": "by-hand"}}},
        {"extra_body": {"session_id": "by-hand"}},
        {"extra_headers": {"X-Session-ID": "by-hand"}},
        {"extra_headers": {"x-agentkv-job": "by-hand"}},
    ],
    ids=str,
)
def test_a_request_tagged_by_hand_is_left_alone(
    by_hand: dict[str, Any], server: ScriptedServer, client: OpenAI
) -> None:
    """A request that names a job, in any form that the server reads, keeps that job alone."""
    with agentkv.session(client, job_id="ours") as job:
        job.client.chat.completions.create(**CHAT, **by_hand)
    assert server.turns[0].tags.get("job_id") != "ours"
    assert job.summary().turns == 0


def test_every_tag_travels_as_a_header_too(server: ScriptedServer, client: OpenAI) -> None:
    """What the body says is said by headers as well, percent-encoded where they cannot hold it."""
    with (
        agentkv.session(job_id="työ"),
        agentkv.session(client, job_id="a", expected_turns=9) as job,
    ):
        job.client.chat.completions.create(**CHAT)
        with job.tool("echo ä"):
            pass
        job.last_step()
        job.client.chat.completions.create(**CHAT)
    for turn in server.turns:
        assert parse_header_tags(turn.headers) == parse_tags(turn.body)
    assert server.turns[1].headers["x-agentkv-parent"] == "ty%C3%B6"
    assert server.turns[1].body.keys() > set(TAG_FIELDS) - {"max_ttl_s"}


@pytest.mark.parametrize("has_plugin", [True, False])
def test_without_headers_a_job_travels_in_bodies_alone(has_plugin: bool, client: OpenAI) -> None:
    """session(headers=False) sends none with a turn, the question, a tool or the release."""
    with ScriptedServer(has_plugin=has_plugin) as server:
        client = client.with_options(base_url=server.base_url)
        with agentkv.session(client, headers=False, on_missing_server="ignore") as job:
            job.client.chat.completions.create(**CHAT)
            with job.tool("ls"):
                pass
        assert agentkv.flush(timeout_s=20)
    assert ("job_id" in server.turns[0].body) is has_plugin
    assert ("agentkv_wire_version" in server.turns[0].body) is has_plugin
    assert len(server.requests) == (5 if has_plugin else 2)
    assert not any(READ_HEADERS & request.headers.keys() for request in server.requests)


def test_a_router_that_reads_agentic_context_gets_it(client: OpenAI) -> None:
    """Where the server says so, with the caller's own arguments; the release goes there, too."""
    with ScriptedServer(info={"settings": {"agentic_router": True}}) as server:
        client = client.with_options(base_url=server.base_url)
        with agentkv.session(client, job_id="a/1") as job:
            job.client.chat.completions.create(**CHAT, extra_body={"vllm_xargs": {"mine": 1}})
        assert agentkv.flush(timeout_s=20)
    xargs = server.turns[0].body["vllm_xargs"]
    context = json.loads(xargs.pop("agentic_context"))
    assert (context["program_id"], context["step_id"], xargs) == ("a/1", 1, {"mine": 1})
    paths = [request.path for request in server.requests]
    assert paths[-2:] == ["/v1/agentkv/jobs/a%2F1/release", "/finish_session?session_id=a%2F1"]


def test_a_retry_has_the_number_of_the_turn(server: ScriptedServer, client: OpenAI) -> None:
    """The server takes a repeated number for a retry, be it the SDK's or the agent's own."""
    server.fail_next(500, 503)
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        server.fail_next(400)
        with pytest.raises(openai.BadRequestError):
            job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 1, 2, 2]
    assert (job.summary().turns, job.summary().failed_calls) == (2, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("is_async", "has_plugin"), [(False, True), (False, False), (True, True)], ids=str
)
@pytest.mark.parametrize(("read", "path", "options"), [WAYS[1], WAYS[7]], ids=["chat", "responses"])
async def test_a_reply_that_does_not_fit_its_format_is_a_turn(
    read: Callable[[Any], Any],
    path: str,
    options: dict[str, Any],
    is_async: bool,
    has_plugin: bool,
    client: OpenAI,
    async_client: AsyncOpenAI,
) -> None:
    """The server answered: it would take the next request with the same number for a retry."""
    replies = [ScriptedReply('{"word": 2'), ScriptedReply(TEXT)]
    with ScriptedServer(replies, has_plugin=has_plugin) as server:
        chosen: Any = (async_client if is_async else client).with_options(base_url=server.base_url)
        async with agentkv.session(chosen, on_missing_server="ignore") as job:
            with pytest.raises(pydantic.ValidationError):
                await read(ask(job.client, path, options))
            summary = job.summary()
            await read(ask(job.client, path, options))
        assert agentkv.flush(timeout_s=20)
    assert (summary.turns, summary.failed_calls, summary.output_tokens) == (1, 0, 5)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 2]


def test_an_answer_that_the_sdk_finds_invalid_is_a_turn(server: ScriptedServer) -> None:
    """With strict validation, the SDK's error carries a successful answer: the turn counts."""
    with (
        OpenAI(base_url=server.base_url, api_key="key", _strict_response_validation=True) as client,
        agentkv.session(client) as job,
    ):
        with pytest.raises(openai.APIResponseValidationError):
            job.client.post("/chat/completions", body=CHAT, cast_to=openai.types.Batch)
        assert (job.summary().turns, job.summary().failed_calls) == (1, 0)


def test_a_request_that_could_not_be_made_is_no_turn(
    server: ScriptedServer, client: OpenAI
) -> None:
    """If the SDK cannot encode a request, nothing is sent and the next one has its number."""
    with agentkv.session(client) as job:
        with pytest.raises(TypeError):
            job.client.chat.completions.create(**CHAT, extra_body={"top_k": object()})
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags["turn"] for turn in server.turns] == [1]
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


@pytest.mark.asyncio
async def test_a_cancelled_call_is_no_turn(async_client: AsyncOpenAI) -> None:
    """After a cancelled call its number is used again, since the server may not have begun it."""
    with ScriptedServer([ScriptedReply(delay_s=60), ScriptedReply()]) as server:
        async with (
            async_client.with_options(base_url=server.base_url) as client,
            agentkv.session(client) as job,
        ):
            call = asyncio.create_task(job.client.chat.completions.create(**CHAT))
            await asyncio.to_thread(server.wait_for, lambda server: server.turns)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await job.client.chat.completions.create(**CHAT)
        assert agentkv.flush(timeout_s=20)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1]
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


@pytest.mark.asyncio
async def test_a_call_that_is_closed_outside_of_its_task_is_no_turn(
    server: ScriptedServer, async_client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is closed without an error by the garbage collector, as after its loop has stopped.

    It waits in nothing of its HTTP library, since httpcore2 itself cannot be closed so.
    """

    async def wait(*args: Any, **kwargs: Any) -> None:
        await asyncio.Future()

    async with agentkv.session(async_client) as job:
        await job.client.chat.completions.create(**CHAT)
        monkeypatch.setattr(async_client._client, "send", wait)
        call = job.client.chat.completions.create(**CHAT)
        call.send(None)
        contextvars.Context().run(call.close)
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


def test_other_routes_are_left_alone(server: ScriptedServer, client: OpenAI) -> None:
    """Embeddings and listings of models are neither tagged nor counted."""
    with agentkv.session(client) as job:
        with pytest.raises(openai.NotFoundError):
            job.client.embeddings.create(model="m", input="x")
        with pytest.raises(openai.NotFoundError):
            job.client.models.list()
    assert [request.path for request in server.requests] == ["/v1/embeddings", "/v1/models"]
    assert server.requests[0].tags == {}


@pytest.mark.asyncio
async def test_a_failure_of_ours_leaves_the_request_untouched(
    server: ScriptedServer,
    client: OpenAI,
    async_client: AsyncOpenAI,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error inside of agentkv is logged once per process, and the agent gets its replies."""
    odd: Any = {b"X-Note": "a name in bytes, which HTTP clients accept"}
    for chosen in (client, async_client):
        with agentkv.session(chosen) as job:
            await resolved(job.client.chat.completions.create(**CHAT, extra_headers=odd))
    with agentkv.session(), httpx.Client() as http_client, pytest.raises(TypeError):
        http_client.send()  # type: ignore[call-arg]
    assert [turn.tags for turn in server.turns] == [{}, {}]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "could not tag a request" in caplog.text
