"""job.client as a drop-in, and the client given to a session while that is open."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from tests.scripted_apis import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}
OURS = {"request", "copy", "with_options"}
"""The methods that a session replaces on its client while it is open."""


async def resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def ways(client: Any) -> list[Callable[[], Any]]:
    """A call of a client itself, of a resource it made before, and of two copies of it."""
    completions = client.chat.completions
    return [
        lambda: client.chat.completions.create(**CHAT),
        lambda: completions.create(**CHAT),
        lambda: client.with_options(timeout=5).copy(max_retries=0).chat.completions.create(**CHAT),
        lambda: client.with_raw_response.chat.completions.create(**CHAT),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_client_itself_is_tagged_while_the_session_is_open(
    is_async: bool, server: ScriptedServer, client: OpenAI, async_client: AsyncOpenAI
) -> None:
    """Inside the block `client` counts like `job.client`, streams included; then it is plain."""
    chosen: Any = async_client if is_async else client
    calls = ways(chosen)
    await resolved(calls[0]())
    with agentkv.session(chosen) as job:
        for call in (*calls, *ways(job.client)):
            await resolved(call())
        stream = await resolved(chosen.chat.completions.create(**CHAT, stream=True))
    assert not OURS & set(vars(chosen))
    assert job.summary().turns == 8
    assert len([event async for event in stream] if is_async else list(stream)) > 1
    for call in calls:
        await resolved(call())
    assert [turn.tags.get("turn") for turn in server.turns] == [None, *range(1, 10), *[None] * 4]
    assert job.summary().turns == 9


def test_sessions_that_share_a_client_tag_its_calls_by_thread(
    server: ScriptedServer, client: OpenAI
) -> None:
    """Each thread's calls of the client belong to the session it is in, or to none."""
    is_open, may_close = threading.Event(), threading.Event()

    def hold_open() -> None:
        with agentkv.session(client, job_id="a"):
            client.chat.completions.create(**CHAT)
            is_open.set()
            assert may_close.wait(20)

    thread = threading.Thread(target=hold_open)
    thread.start()
    assert is_open.wait(20)
    client.chat.completions.create(**CHAT)
    with agentkv.session(client, job_id="b"):
        client.chat.completions.create(**CHAT)
    may_close.set()
    thread.join()
    assert [turn.tags.get("job_id") for turn in server.turns] == ["a", None, "b"]
    assert not OURS & set(vars(client))


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "inside"])
def test_a_request_method_replaced_on_the_client_stays(
    is_before: bool, server: ScriptedServer, client: OpenAI
) -> None:
    """A replacement by somebody else is neither covered nor taken away with ours."""

    def replace() -> Any:
        request = client.request
        client.request = lambda *args, **options: request(*args, **options)  # type: ignore[method-assign]
        return client.request

    replacement = replace() if is_before else None
    with agentkv.session(client):
        replacement = replacement or replace()
        client.chat.completions.create(**CHAT)
        assert client.request is replacement
    client.chat.completions.create(**CHAT)
    assert client.request is replacement
    assert [bool(turn.tags) for turn in server.turns] == [not is_before, False]


@pytest.mark.parametrize("has_plugin", [True, False])
def test_a_subclass_that_overrides_request_is_one_turn(
    server: ScriptedServer, has_plugin: bool
) -> None:
    """It is copied without calling its constructor; its method runs around the tagging one."""
    server.has_plugin = has_plugin
    calls = []

    class Counting(OpenAI):  # type: ignore[misc]
        def __init__(self, where: str) -> None:
            super().__init__(base_url=where, api_key="key")

        def request(self, cast_to: Any, options: Any, **kwargs: Any) -> Any:
            calls.append(options.url)
            return super().request(cast_to, options, **kwargs)

    with (
        Counting(server.base_url) as client,
        agentkv.session() as around,
        agentkv.session(client) as job,
    ):
        assert (type(job.client), job.client.base_url) == (Counting, client.base_url)
        job.client.chat.completions.create(**CHAT)
    assert calls.count("/chat/completions") == 1
    assert (job.summary().turns, around.summary().turns) == (1, 0)


def counted(client: OpenAI, calls: list[str]) -> None:
    """Wrap a method the way tracers do."""
    create = client.chat.completions.create

    def wrapper(*args: Any, **options: Any) -> Any:
        calls.append("create")
        return create(*args, **options)

    client.chat.completions.create = wrapper  # type: ignore[method-assign]


def test_a_method_replaced_on_the_client_is_reported_once(
    client: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    """A tracer calls the client that it was made for: one warning says that job.client lacks it.

    It lists every resource and method of the client that was replaced.
    """
    counted(client, [])
    client.post = print  # type: ignore[assignment]
    client.responses = object()  # type: ignore[assignment,misc]
    for _ in range(2):
        with (
            agentkv.session(client) as job,
            agentkv.session(job.client),
            agentkv.session(client),
        ):
            pass
    (record,) = caplog.records
    assert "agentkv: chat.completions.create, post, responses of the client" in record.getMessage()
    assert "Call the client itself inside the session" in record.getMessage()


def test_the_advice_of_the_warning_works(server: ScriptedServer, client: OpenAI) -> None:
    """A wrapped drop-in is traced and tagged, and so is a wrapped client in either session."""
    calls: list[str] = []
    with agentkv.session(client) as job:
        counted(job.client, calls)
        job.client.chat.completions.create(**CHAT)
    counted(client, calls)
    for session in (agentkv.session(client), agentkv.session()):
        with session:
            client.chat.completions.create(**CHAT)
    assert calls == ["create"] * 3
    assert [turn.tags["turn"] for turn in server.turns] == [1, 1, 1]


def test_a_client_that_was_used_in_any_way_has_nothing_replaced(
    server: ScriptedServer, client: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    """The resources that the SDK caches on a client, raw and streamed, are no replacements."""
    client.chat.completions.create(**CHAT)
    client.with_raw_response.chat.completions.create(**CHAT)
    client.chat.completions.with_raw_response.create(**CHAT)
    with client.with_streaming_response.chat.completions.create(**CHAT):
        pass
    client.responses.create(model="m", input="hi")
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        with agentkv.session(job.client.with_options(timeout=5)):
            pass
    assert caplog.records == []


def test_a_resource_that_a_subclass_makes_is_not_replaced(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A resource of a subclass's own is no replacement: the drop-in makes another one."""

    class Chat:
        __slots__ = ("ask",)

        def __init__(self, client: OpenAI) -> None:
            self.ask = lambda: client.post("/chat/completions", body=CHAT, cast_to=object)

    class House(OpenAI):  # type: ignore[misc]
        @cached_property
        def chat(self) -> Any:
            return Chat(self)

    with House(base_url=server.base_url, api_key="key") as client:
        client.chat.ask()
        with agentkv.session(client) as job:
            job.client.chat.ask()
    assert [turn.tags.get("turn") for turn in server.turns] == [None, 1]
    assert caplog.records == []


@pytest.mark.parametrize("with_client", [True, False])
def test_azure_works_as_without_us(with_client: bool) -> None:
    """Azure has other paths and no plugin: its calls are counted, and their bodies stay."""
    with (
        ScriptedServer(has_plugin=False) as server,
        openai.AzureOpenAI(
            azure_endpoint=server.root_url, api_key="key", api_version="2024-10-21", max_retries=0
        ) as client,
        agentkv.session(client if with_client else None, on_missing_server="ignore") as job,
        pytest.raises(openai.NotFoundError),
    ):
        (job.client or client).chat.completions.create(**CHAT)
    posts = [request for request in server.requests if request.method == "POST"]
    assert [post.path for post in posts] == [
        "/openai/deployments/m/chat/completions?api-version=2024-10-21"
    ]
    assert posts[0].body == CHAT
    assert job.summary().failed_calls == 1


def test_a_header_of_the_clients_own_is_not_sent_twice(server: ScriptedServer) -> None:
    """A session id among the client's headers gives way to the job's, in any case: routers
    read the first of two."""
    sent: list[list[str]] = []

    def note(request: httpx.Request) -> None:
        sent.append(request.headers.get_list("x-session-id"))

    own = {"x-session-ID": "all", "X-AGENTKV-affinity": "all"}
    http_client = openai.DefaultHttpxClient(verify=False, event_hooks={"request": [note]})
    with (
        OpenAI(
            base_url=server.base_url, api_key="k", default_headers=own, http_client=http_client
        ) as client,
        agentkv.session(client, job_id="a", affinity="lead") as job,
    ):
        job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT, extra_headers={"X-AgentKV-AFFINITY": "mine"})
    server.wait_for(lambda server: server.released)
    # the question, two turns, and the release unless the client was closed by then
    assert sent in ([["a"]] * 3, [["a"]] * 4)
    affinities = [request.headers["x-agentkv-affinity"] for request in server.requests]
    assert affinities == ["lead", "lead", "mine", "lead"]
