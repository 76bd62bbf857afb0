"""Sessions in all their forms: which calls are tagged, when a job ends, which job is the parent."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from tests.scripted_apis import ScriptedServer

# Below the SDK's next major is the next major of its HTTP client, under another name.
HTTP: Any = importlib.import_module("httpx2" if openai.__version__ >= "3" else "httpx")


def ask(client: OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[], **options)


async def ask_async(client: AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=[], **options)


@pytest.mark.parametrize("fails", [False, True])
def test_leaving_releases_the_job(fails: bool, server: ScriptedServer, client: OpenAI) -> None:
    """The server learns of the end in the background, also after an exception, which passes."""
    with (
        pytest.raises(ZeroDivisionError) if fails else nullcontext(),
        agentkv.session(job_id="django-11451"),
    ):
        ask(client)
        assert server.released == []
        if fails:
            _ = 1 / 0
    server.wait_for(lambda server: server.released == ["django-11451"])
    assert agentkv.current_job() is None


def test_a_session_with_a_client_covers_that_client_alone(
    server: ScriptedServer, client: OpenAI
) -> None:
    """job.client and the client are tagged; another client belongs to the session around."""
    with (
        OpenAI(base_url=server.base_url, api_key="other") as other,
        agentkv.session(job_id="around") as around,
        agentkv.session(client, job_id="a", expected_turns=30, server=client.base_url) as job,
    ):
        ask(job.client)
        ask(client)
        ask(other)
    assert [turn.tags for turn in server.turns] == [
        {"job_id": "a", "parent_job_id": "around", "turn": 1, "expected_turns": 30},
        {"job_id": "a", "parent_job_id": "around", "turn": 2, "expected_turns": 30},
        {"job_id": "around", "turn": 1},
    ]
    assert (job.summary().turns, around.summary().turns) == (2, 1)


def test_nested_sessions_have_the_outer_one_as_parent(
    server: ScriptedServer, client: OpenAI
) -> None:
    """A sub-agent's calls are turns of its own job; outside of any session calls are plain."""
    ask(client)
    with agentkv.session(job_id="outer"):
        ask(client)
        with agentkv.session(job_id="inner"):
            ask(client)
        ask(client)
        with agentkv.session(job_id="adopted", parent_job_id="other"):
            ask(client)
    ask(client)
    assert [turn.tags for turn in server.turns] == [
        {},
        {"job_id": "outer", "turn": 1},
        {"job_id": "inner", "parent_job_id": "outer", "turn": 1},
        {"job_id": "outer", "turn": 2},
        {"job_id": "adopted", "parent_job_id": "other", "turn": 1},
        {},
    ]
    server.wait_for(lambda server: server.released == ["inner", "adopted", "outer"])


def test_a_job_names_another_to_stay_with_on_every_request(
    server: ScriptedServer, client: OpenAI
) -> None:
    """A child's turns, tool events and release carry its parent's id for routers, and its own."""
    with agentkv.session(job_id="lead"):
        ask(client)
        with agentkv.session(job_id="child", affinity="lead") as child:
            ask(client)
            with child.tool("ls"):
                pass
    server.wait_for(lambda server: server.released == ["child", "lead"])
    names = ("x-session-id", "x-agentkv-affinity")
    sent = Counter(tuple(map(request.headers.get, names)) for request in server.requests)
    assert sent[("child", "lead")] >= 4  # a turn, two events, the release, perhaps the question
    assert {job for job, affinity in sent if affinity is None} >= {"lead"}
    assert ("child", None) not in sent


def test_a_drop_in_is_for_its_own_job_while_that_is_open(
    server: ScriptedServer, client: OpenAI
) -> None:
    """job.client belongs to its job inside of any other session; after its own it is plain."""
    with (
        agentkv.session(client, job_id="mine") as mine,
        agentkv.session(job_id="around") as around,
    ):
        ask(mine.client)
        ask(client)
    ask(mine.client)
    assert [turn.tags.get("job_id") for turn in server.turns] == ["mine", "around", None]
    assert (mine.summary().turns, around.summary().turns) == (1, 1)


def test_a_decorated_function_is_a_job_per_call(server: ScriptedServer, client: OpenAI) -> None:
    """Each call of a decorated function is a job; its name and result stay."""

    @agentkv.session()
    def solve(task: str) -> str:
        """Solve it."""
        ask(client)
        return task.upper()

    assert (solve("a"), solve(task="b")) == ("A", "B")
    assert (solve.__name__, solve.__doc__) == ("solve", "Solve it.")
    first, second = (turn.tags["job_id"] for turn in server.turns)
    assert first != second
    server.wait_for(lambda server: server.released == [first, second])


@pytest.mark.asyncio
async def test_decorated_coroutines_at_once_are_jobs_of_their_own(
    server: ScriptedServer, async_client: AsyncOpenAI
) -> None:
    """Concurrent calls of one decorated coroutine do not share a job."""

    @agentkv.session()
    async def solve() -> str:
        await ask_async(async_client)
        await ask_async(async_client)
        job = agentkv.current_job()
        assert job is not None
        return job.job_id

    job_ids = await asyncio.gather(*(solve() for _ in range(4)))
    assert len(set(job_ids)) == 4
    seen = sorted((turn.tags["job_id"], turn.tags["turn"]) for turn in server.turns)
    assert seen == sorted((job_id, turn) for job_id in job_ids for turn in (1, 2))


def test_a_generator_cannot_be_decorated() -> None:
    """A generator's body runs in pieces inside its caller, so decorating one is a TypeError."""
    with pytest.raises(TypeError, match="use `with` in its body"):

        @agentkv.session()
        def pieces() -> Any:
            yield 1


@pytest.mark.asyncio
async def test_async_with_tags_and_releases(
    server: ScriptedServer, async_client: AsyncOpenAI
) -> None:
    """`async with` does the same as `with`; concurrent requests get numbers without holes."""
    async with agentkv.session(async_client, job_id="a") as job:
        await asyncio.gather(*(ask_async(job.client) for _ in range(8)))
        async with agentkv.session(job_id="b"):
            await ask_async(async_client)
    assert sorted(turn.tags["turn"] for turn in server.turns[:8]) == list(range(1, 9))
    assert server.turns[8].tags == {"job_id": "b", "parent_job_id": "a", "turn": 1}
    assert job.summary().turns == 8
    server.wait_for(lambda server: server.released == ["b", "a"])


def test_the_current_job_is_the_innermost(server: ScriptedServer) -> None:
    """current_job() is None outside of any session; each entry makes another job.

    No server knows a job without a call, so no release is sent.
    """
    assert agentkv.current_job() is None
    session = agentkv.session()
    with session as outer:
        with session as inner:
            assert agentkv.current_job() is inner
        assert agentkv.current_job() is outer
    assert agentkv.current_job() is None
    assert outer.job_id != inner.job_id
    assert agentkv.flush()
    assert server.requests == []


def test_sessions_left_out_of_order_do_not_mix() -> None:
    """If two generators interleave their sessions in one thread, each ends its own job."""

    def stretch(job_id: str) -> Any:
        with agentkv.session(job_id=job_id) as job:
            yield job

    first, second = stretch("first"), stretch("second")
    first_job, second_job = next(first), next(second)
    first.close()
    assert first_job.is_over
    assert not second_job.is_over
    assert agentkv.current_job() is second_job
    second.close()
    assert agentkv.current_job() is None


@pytest.mark.asyncio
async def test_a_session_left_in_another_task_still_ends() -> None:
    """A session in an async generator ends its job, even if another task closes the generator."""

    async def stretch() -> Any:
        async with agentkv.session() as job:
            yield job

    generator = stretch()
    job = await asyncio.create_task(anext(generator))
    await asyncio.create_task(generator.aclose())
    assert job.is_over


def test_the_last_step_is_declared_or_follows_from_a_limit(
    server: ScriptedServer, client: OpenAI
) -> None:
    """last_step() and limit_turns() mark a turn as the last; expected_turns alone does not."""
    with agentkv.session(client, job_id="declared") as job:
        ask(job.client)
        job.last_step()
        ask(job.client)
    with agentkv.session(client, job_id="limited", expected_turns=1) as job:
        ask(job.client)
        job.limit_turns(2)
        ask(job.client)
    assert [turn.tags.get("is_last_step") for turn in server.turns] == [None, True] * 2
    assert [turn.tags.get("expected_turns") for turn in server.turns] == [None, None, 1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": ""},
        {"job_id": "x" * 1_000_000},
        {"job_id": 7},
        {"parent_job_id": "x" * 257},
        {"affinity": ""},
        {"expected_turns": 0},
        {"expected_turns": 1.5},
        {"expected_turns": 10**5_000},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_tags_are_refused_at_once(wrong: dict[str, Any]) -> None:
    """session() raises TagError with the name of the field, before anything is sent.

    limit_turns() has the range of `expected_turns`, and names its own argument.
    """
    (field,) = wrong
    with pytest.raises(agentkv.TagError, match=field):
        agentkv.session(**wrong)
    if field == "expected_turns":
        with agentkv.session() as job, pytest.raises(agentkv.TagError, match="num_turns: got"):
            job.limit_turns(wrong[field])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": "http://localhost:8000/v1"}, "got str, allowed is an OpenAI"),
        ({"client": OpenAI}, r"got the class OpenAI, allowed .*session\(OpenAI\("),
        ({"server": 5}, r"session\(server=\): got 5 .* allowed is the URL"),
        ({"server": b"http://127.0.0.1"}, r"session\(server=\): got .* allowed is the URL"),
        ({"server": ["http://127.0.0.1"]}, r"session\(server=\): got .* allowed is the URL"),
        ({"on_missing_server": "panic"}, "'warn', 'raise', 'ignore'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    """session() says what it got and what is allowed, before the first call."""
    with pytest.raises((TypeError, ValueError), match=message):
        agentkv.session(**options)


def methods() -> tuple[object, ...]:
    return (
        HTTP.Client.send,
        HTTP.AsyncClient.send,
        threading.Thread.start,
        ThreadPoolExecutor.submit,
    )


def test_uninstrument_restores_everything(server: ScriptedServer, client: OpenAI) -> None:
    """The methods of httpx and of threads are the originals again; a new session works again."""
    originals = methods()
    with agentkv.session():
        assert not set(methods()) & set(originals)
        agentkv.uninstrument()
        assert methods() == originals
        ask(client)
    with agentkv.session():
        ask(client)
    assert [bool(turn.tags) for turn in server.turns] == [False, True]


def test_what_is_replaced_can_be_listed(client: OpenAI) -> None:
    """A session without a client replaces what instrument() does; one with a client, threads."""
    originals = methods()
    with agentkv.session(client):
        by_session_with_client = agentkv.instrumented()
        assert methods()[:2] == originals[:2]
    assert by_session_with_client == [
        "concurrent.futures.thread.ThreadPoolExecutor.submit",
        "threading.Thread.start",
    ]
    with agentkv.session():
        by_session = agentkv.instrumented()
    assert {
        *by_session_with_client,
        *("httpx.Client.send", "httpx.AsyncClient.send"),
    } <= set(by_session)
    agentkv.uninstrument()
    assert agentkv.instrumented() == []
    agentkv.instrument()
    agentkv.instrument()
    assert set(by_session) <= set(agentkv.instrumented())
    agentkv.uninstrument()
    assert agentkv.instrumented() == []


def test_uninstrument_beneath_another_patch_falls_silent(
    server: ScriptedServer, client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If other code wrapped the method on top of ours, ours stays below it and does nothing."""
    with agentkv.session():
        ours = HTTP.Client.send
        with monkeypatch.context() as patch:
            theirs: Any = lambda *args, **options: ours(*args, **options)  # noqa: E731
            patch.setattr(HTTP.Client, "send", theirs)
            agentkv.uninstrument()
            ask(client)
    agentkv.uninstrument()
    assert server.turns[0].tags == {}
