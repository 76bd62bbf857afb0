"""Every way the SDK has of asking for a reply is tagged, read, and handed on unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pydantic
import pytest

import agentkv
from agentkv.testing import ScriptedReply, ScriptedServer

TEXT = '{"word": "two"}'
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "one"}]}
TEXT_IN: dict[str, Any] = {"model": "m", "prompt": "one"}
RESPONSE: dict[str, Any] = {"model": "m", "input": "one"}
WITH_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


class Answer(pydantic.BaseModel):
    """What the model is asked to fill in."""

    word: str


WHOLE: dict[str, Callable[[Any], Any]] = {
    "chat.create": lambda c: c.chat.completions.create(**CHAT),
    "chat.parse": lambda c: c.chat.completions.parse(**CHAT, response_format=Answer),
    "chat.raw": lambda c: c.chat.completions.with_raw_response.create(**CHAT),
    "completions": lambda c: c.completions.create(**TEXT_IN),
    "completions.raw": lambda c: c.completions.with_raw_response.create(**TEXT_IN),
    "responses": lambda c: c.responses.create(**RESPONSE),
    "responses.parse": lambda c: c.responses.parse(**RESPONSE, text_format=Answer),
    "responses.raw": lambda c: c.responses.with_raw_response.create(**RESPONSE),
    "with_options": lambda c: c.with_options(timeout=9).chat.completions.create(**CHAT),
    "client.raw": lambda c: c.with_raw_response.chat.completions.create(**CHAT),
}
STREAMED: dict[str, Callable[[Any], Any]] = {
    "chat": lambda c: c.chat.completions.create(**CHAT, **WITH_USAGE),
    "completions": lambda c: c.completions.create(**TEXT_IN, **WITH_USAGE),
    "responses": lambda c: c.responses.create(**RESPONSE, stream=True),
}
RAW_STREAMED: dict[str, Callable[[Any], Any]] = {
    "chat": lambda c: c.chat.completions.with_raw_response.create(**CHAT, **WITH_USAGE),
    "responses": lambda c: c.responses.with_raw_response.create(**RESPONSE, stream=True),
}
MANAGED: dict[str, Callable[[Any], Any]] = {
    "chat.stream": lambda c: c.chat.completions.stream(
        **CHAT, stream_options={"include_usage": True}
    ),
    "responses.stream": lambda c: c.responses.stream(**RESPONSE),
}
UNREAD: dict[str, Callable[[Any], Any]] = {
    "chat": lambda c: c.chat.completions.with_streaming_response.create(**CHAT),
    "chat.stream": lambda c: c.chat.completions.with_streaming_response.create(
        **CHAT, **WITH_USAGE
    ),
    "completions": lambda c: c.completions.with_streaming_response.create(**TEXT_IN),
    "responses": lambda c: c.responses.with_streaming_response.create(**RESPONSE),
}


@pytest.fixture
def server() -> Any:
    with ScriptedServer([ScriptedReply(TEXT, delay_s=0.02)]) as server:
        yield server
        assert agentkv.flush(timeout_s=20)


def assert_one_turn_was_read(server: ScriptedServer, job: agentkv.Job[Any]) -> None:
    (turn,) = server.turns
    assert turn.tags == {"job_id": job.job_id, "turn": 1}
    summary = job.summary()
    assert (summary.turns, summary.failed_calls) == (1, 0)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (100, 80, 5)
    assert 0.02 <= summary.llm_s < 10


@pytest.mark.parametrize("way", WHOLE)
def test_whole_replies(way: str, server: ScriptedServer, client: openai.OpenAI) -> None:
    """Parsed or raw, the reply's usage is read at once."""
    with agentkv.session(client) as job:
        reply = WHOLE[way](job.client)
    assert_one_turn_was_read(server, job)
    assert type(reply) is type(WHOLE[way](client))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", WHOLE)
async def test_whole_replies_async(
    way: str, server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client, covered by a session without a client."""
    async with agentkv.session() as job:
        await WHOLE[way](async_client)
    assert_one_turn_was_read(server, job)


@pytest.mark.parametrize("way", STREAMED)
def test_streams(way: str, server: ScriptedServer, client: openai.OpenAI) -> None:
    """A stream is a turn when it ends, and gives the same events as without us."""
    with agentkv.session() as job:
        stream = STREAMED[way](client)
        assert job.summary().turns == 0
        events = [event.model_dump() for event in stream]
    assert_one_turn_was_read(server, job)
    assert events == [event.model_dump() for event in STREAMED[way](client)]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", STREAMED)
async def test_streams_async(
    way: str, server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client."""
    async with agentkv.session(async_client) as job:
        async for _event in await STREAMED[way](job.client):
            pass
    assert_one_turn_was_read(server, job)


@pytest.mark.parametrize("way", RAW_STREAMED)
def test_raw_streams(way: str, server: ScriptedServer, client: openai.OpenAI) -> None:
    """What gateways built on the SDK do: take the raw reply, parse the stream out of it."""
    with agentkv.session(client) as job:
        for _event in RAW_STREAMED[way](job.client).parse():
            pass
    assert_one_turn_was_read(server, job)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", RAW_STREAMED)
async def test_raw_streams_async(
    way: str, server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client."""
    async with agentkv.session(async_client) as job:
        async for _event in (await RAW_STREAMED[way](job.client)).parse():
            pass
    assert_one_turn_was_read(server, job)


@pytest.mark.parametrize("way", MANAGED)
def test_stream_managers(way: str, server: ScriptedServer, client: openai.OpenAI) -> None:
    """The SDK's stream() helpers send when they are entered."""
    with agentkv.session(client) as job, MANAGED[way](job.client) as stream:
        stream.until_done()
    assert_one_turn_was_read(server, job)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", MANAGED)
async def test_stream_managers_async(
    way: str, server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client."""
    async with agentkv.session(async_client) as job, MANAGED[way](job.client) as stream:
        await stream.until_done()
    assert_one_turn_was_read(server, job)


@pytest.mark.parametrize("way", UNREAD)
def test_replies_left_to_the_caller_to_read(
    way: str, server: ScriptedServer, client: openai.OpenAI
) -> None:
    """with_streaming_response: the caller reads the bytes, line by line or whole."""
    with agentkv.session(client) as job, UNREAD[way](job.client) as reply:
        assert "usage" in "".join(reply.iter_lines())
    assert_one_turn_was_read(server, job)


@pytest.mark.asyncio
@pytest.mark.parametrize("way", UNREAD)
async def test_replies_left_to_the_caller_to_read_async(
    way: str, server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client."""
    async with agentkv.session(async_client) as job, UNREAD[way](job.client) as reply:
        assert b"usage" in await reply.read()
    assert_one_turn_was_read(server, job)


def test_bytes_cut_by_the_caller_are_read_to_the_last(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """httpx closes the response before it hands out what is left of the last chunk."""
    with agentkv.session(client) as job, UNREAD["chat"](job.client) as reply:
        assert list(reply.iter_bytes(chunk_size=100_000))
    assert_one_turn_was_read(server, job)


def test_a_stream_closed_midway_is_over(server: ScriptedServer, client: openai.OpenAI) -> None:
    """Also while somebody still holds what reads it."""
    with agentkv.session(client) as job, UNREAD["chat.stream"](job.client) as reply:
        chunks = reply.iter_bytes(chunk_size=10)
        next(chunks)
        reply.close()
        assert job.summary().turns == 1


def test_a_stream_without_usage_leaves_the_tokens_unknown(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Options of the caller's stream are not changed to find out."""
    with agentkv.session(client) as job:
        list(job.client.chat.completions.create(**CHAT, stream=True))
    assert "stream_options" not in server.turns[0].body
    assert job.summary().turns == job.summary().turns_without_usage == 1
    assert job.summary().prompt_tokens is None


def test_a_stream_closed_early_is_a_turn(server: ScriptedServer, client: openai.OpenAI) -> None:
    """What arrived before was the model's work all the same."""
    with agentkv.session(client) as job:
        with job.client.chat.completions.create(**CHAT, stream=True) as stream:
            next(iter(stream))
        assert job.summary().turns == 1


def test_a_stream_that_breaks_off_raises_as_without_us(client: openai.OpenAI) -> None:
    """The caller sees the SDK's own error; the job can go on."""
    broken = ScriptedReply("one two three", cut_after_events=1)

    def read(client: openai.OpenAI) -> str:
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


def test_the_callers_own_extra_body_is_kept(server: ScriptedServer, client: openai.OpenAI) -> None:
    """Ours is added to it, and theirs is not changed."""
    extra = {"top_k": 5, "turn": 77}
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT, extra_body=extra)
    assert server.turns[0].body["top_k"] == 5
    assert server.turns[0].tags == {"job_id": "a", "turn": 77}
    assert extra == {"top_k": 5, "turn": 77}


@pytest.mark.parametrize(
    "by_hand",
    [
        {"extra_body": {"job_id": "by-hand"}},
        {"extra_body": {"vllm_xargs": {"job_id": "by-hand"}}},
        {"extra_body": {"extra_body": {"job_id": "by-hand"}}},
        {"extra_body": {"session_id": "by-hand"}},
        {"extra_headers": {"X-Session-ID": "by-hand"}},
    ],
    ids=str,
)
def test_a_request_tagged_by_hand_is_left_alone(
    by_hand: dict[str, Any], server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Whoever names a job, in any form that the server takes, speaks for another than ours."""
    with agentkv.session(client, job_id="ours") as job:
        job.client.chat.completions.create(**CHAT, **by_hand)
    assert server.turns[0].tags.get("job_id") != "ours"
    assert job.summary().turns == 0


def test_the_body_is_otherwise_the_same(server: ScriptedServer, client: openai.OpenAI) -> None:
    """Tags are all that a session adds to a request."""
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT, temperature=0)
    client.chat.completions.create(**CHAT, temperature=0)
    tagged, plain = server.turns
    assert {
        name: tagged.body[name] for name in tagged.body if name not in tagged.tags
    } == plain.body
    same = {"host", "content-length", "x-stainless-retry-count"}
    assert {k: v for k, v in tagged.headers.items() if k not in same} == {
        k: v for k, v in plain.headers.items() if k not in same
    }


def test_the_sdks_own_retries_keep_the_turn(server: ScriptedServer, client: openai.OpenAI) -> None:
    """A repeated (job_id, turn) is a retry to the server."""
    server.fail_next(500, 503)
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 1, 2]
    assert job.summary().turns == 2


def test_an_error_passes_and_its_turn_is_taken_again(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """The agent's own retry is a retry as well."""
    server.fail_next(400)
    with agentkv.session(client) as job:
        with pytest.raises(openai.BadRequestError):
            job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1]
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


PARSE: dict[str, Callable[[Any], Any]] = {
    "chat": WHOLE["chat.parse"],
    "responses": WHOLE["responses.parse"],
}


@pytest.mark.parametrize("has_plugin", [True, False])
@pytest.mark.parametrize("way", PARSE)
def test_a_reply_that_does_not_fit_its_format_is_a_turn(
    way: str, has_plugin: bool, client: openai.OpenAI
) -> None:
    """The server answered: with the same number again it would take the next one for a retry."""
    replies = [ScriptedReply('{"word": 2'), ScriptedReply(TEXT)]
    with (
        ScriptedServer(replies, has_plugin=has_plugin) as server,
        client.with_options(base_url=server.base_url) as client,
        agentkv.session(client, on_missing_server="ignore") as job,
    ):
        with pytest.raises(pydantic.ValidationError):
            PARSE[way](job.client)
        summary = job.summary()
        PARSE[way](job.client)
        assert agentkv.flush(timeout_s=20)
    assert (summary.turns, summary.failed_calls, summary.output_tokens) == (1, 0, 5)
    assert [turn.tags.get("turn") for turn in server.turns] == (
        [1, 2] if has_plugin else [None] * 2
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("way", PARSE)
async def test_nor_does_an_async_one_repeat_its_number(
    way: str, async_client: openai.AsyncOpenAI
) -> None:
    """The same for the async client."""
    with ScriptedServer([ScriptedReply("no JSON"), ScriptedReply(TEXT)]) as server:
        async with (
            async_client.with_options(base_url=server.base_url) as client,
            agentkv.session(client) as job,
        ):
            with pytest.raises(pydantic.ValidationError):
                await PARSE[way](job.client)
            await PARSE[way](job.client)
        assert agentkv.flush(timeout_s=20)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 2]


def test_an_answer_that_the_sdk_finds_invalid_is_a_turn(server: ScriptedServer) -> None:
    """A client that is strict about the SDK's own types: its error carries the answer."""
    with (
        openai.OpenAI(
            base_url=server.base_url, api_key="key", _strict_response_validation=True
        ) as client,
        agentkv.session(client) as job,
    ):
        with pytest.raises(openai.APIResponseValidationError):
            job.client.post("/chat/completions", body=CHAT, cast_to=openai.types.Batch)
        assert (job.summary().turns, job.summary().failed_calls) == (1, 0)


def test_a_request_that_could_not_be_made_is_no_turn(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Nothing left: the next one has its number."""
    with agentkv.session(client) as job:
        with pytest.raises(TypeError):
            job.client.chat.completions.create(**CHAT, extra_body={"top_k": object()})
        job.client.chat.completions.create(**CHAT)
    assert [turn.tags["turn"] for turn in server.turns] == [1]
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


@pytest.mark.asyncio
async def test_a_cancelled_call_is_no_turn(async_client: openai.AsyncOpenAI) -> None:
    """Its number is used again: the server may or may not have begun with it."""
    with ScriptedServer([ScriptedReply(delay_s=60), ScriptedReply()]) as server:
        async with (
            async_client.with_options(base_url=server.base_url) as client,
            agentkv.session(client) as job,
        ):
            call = asyncio.create_task(WHOLE["chat.create"](job.client))
            await asyncio.to_thread(server.wait_for, lambda server: server.turns)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await WHOLE["chat.create"](job.client)
        assert agentkv.flush(timeout_s=20)
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1]
    assert (job.summary().turns, job.summary().failed_calls) == (1, 1)


def test_other_routes_are_left_alone(server: ScriptedServer, client: openai.OpenAI) -> None:
    """Embeddings and listings are no turns."""
    with agentkv.session(client) as job:
        with pytest.raises(openai.NotFoundError):
            job.client.embeddings.create(model="m", input="x")
        with pytest.raises(openai.NotFoundError):
            job.client.models.list()
    assert [request.path for request in server.requests] == ["/v1/embeddings", "/v1/models"]
    assert server.requests[0].tags == {}
