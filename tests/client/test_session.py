"""Sessions in all their forms: which calls are tagged, when a job ends, which job is the parent."""

import asyncio
import importlib
import threading
from collections import Counter
from collections.abc import Callable
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


def test_nested_sessions_have_the_outer_one_as_parent(
    server: ScriptedServer, client: OpenAI
) -> None:
    """A sub-agent's calls are turns of its own job; outside of any session calls are plain.

    No server knows a job without a call, so no release of it is sent.
    """
    ask(client)
    with agentkv.session(job_id="outer") as outer:
        ask(client)
        with agentkv.session(job_id="inner") as inner:
            ask(client)
            assert agentkv.current_job() is inner
        assert agentkv.current_job() is outer
        ask(client)
        with agentkv.session(job_id="adopted", parent_job_id="other"):
            ask(client)
        with agentkv.session(job_id="silent"):
            pass
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
    with agentkv.session(job_id="child", affinity="lead") as child:
        ask(client)
        with child.tool("ls"):
            pass
    server.wait_for(lambda server: server.released)
    names = ("x-session-id", "x-agentkv-affinity")
    sent = {tuple(map(request.headers.get, names)) for request in server.requests}
    assert sent == {("child", "lead")}


@pytest.mark.asyncio
async def test_a_decorated_function_is_a_job_per_call(
    server: ScriptedServer, client: OpenAI, async_client: AsyncOpenAI
) -> None:
    """Also if several calls of a coroutine run at once; its name and result stay."""

    @agentkv.session()
    def solve(task: str) -> str:
        """Solve it."""
        ask(client)
        return task.upper()

    @agentkv.session()
    async def solve_async() -> str:
        await ask_async(async_client)
        await ask_async(async_client)
        job = agentkv.current_job()
        assert job is not None
        return job.job_id

    assert (solve("a"), solve(task="b")) == ("A", "B")
    assert (solve.__name__, solve.__doc__) == ("solve", "Solve it.")
    job_ids = await asyncio.gather(*(solve_async() for _ in range(4)))
    seen = Counter(turn.tags["job_id"] for turn in server.turns)
    assert sorted(seen.values()) == [1, 1, 2, 2, 2, 2]
    assert {job_id for job_id, num_turns in seen.items() if num_turns == 2} == {*job_ids}


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


@pytest.mark.asyncio
async def test_a_session_in_a_generator_ends_its_own_job() -> None:
    """Whether two interleave in one thread, or another task closes an asynchronous one."""

    def stretch(job_id: str) -> Any:
        with agentkv.session(job_id=job_id) as job:
            yield job

    async def stretch_async() -> Any:
        async with agentkv.session() as job:
            yield job

    first, second = stretch("first"), stretch("second")
    first_job, second_job = next(first), next(second)
    first.close()
    assert (first_job.is_over, second_job.is_over) == (True, False)
    assert agentkv.current_job() is second_job
    second.close()
    assert agentkv.current_job() is None
    generator = stretch_async()
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


def generator() -> Any:
    yield 1


def limited(num_turns: Any) -> None:
    with agentkv.session() as job:
        job.limit_turns(num_turns)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: agentkv.session(job_id=""), "job_id: got"),
    (lambda: agentkv.session(parent_job_id="x" * 257), "parent_job_id: got"),
    (lambda: agentkv.session(affinity=""), "affinity: got"),
    (lambda: agentkv.session(expected_turns=0), "expected_turns: got"),
    (lambda: limited(1.5), "num_turns: got"),
    (lambda: agentkv.session("http://localhost/v1"), "got 'http:.*, allowed is an OpenAI"),
    (lambda: agentkv.session(OpenAI), "got <class .*OpenAI'>, allowed is"),
    (lambda: agentkv.session(on_missing_server="panic"), "'warn', 'raise', 'ignore'"),  # type: ignore[arg-type]
    (lambda: agentkv.session()(generator), "use `with` in its body"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:25] for _, message in WRONG])
def test_a_wrong_argument_is_refused_at_once(call: Callable[[], object], message: str) -> None:
    """The error says what it got and what is allowed, before anything is sent."""
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def methods() -> tuple[object, ...]:
    of_threads = threading.Thread.start, ThreadPoolExecutor.submit
    return HTTP.Client.send, HTTP.AsyncClient.send, *of_threads


def test_what_is_replaced_is_listed_and_restored(server: ScriptedServer, client: OpenAI) -> None:
    """A session with a client replaces methods of threads, one without those of httpx, too; after
    uninstrument() all are the originals, and a new session works again."""
    originals = methods()
    with agentkv.session(client):
        assert methods()[:2] == originals[:2]
        names = agentkv.instrumented()
        assert len(names) == 3
        assert all("hread" in name for name in names)
    with agentkv.session():
        by_session = agentkv.instrumented()
        assert {*by_session} >= {*names, "httpx.Client.send", "httpx.AsyncClient.send"}
        assert not {*methods()} & {*originals}
        agentkv.uninstrument()
        assert (methods(), agentkv.instrumented()) == (originals, [])
        ask(client)
    with agentkv.session():
        ask(client)
    assert [bool(turn.tags) for turn in server.turns] == [False, True]
    agentkv.instrument()
    assert {*agentkv.instrumented()} >= {*by_session}
