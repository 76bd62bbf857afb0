"""Sessions in all their forms: what is tagged, when a job ends, who is whose parent."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

import agentkv
from agentkv.testing import ScriptedServer


def ask(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(model="m", messages=[], **options)


async def ask_async(client: openai.AsyncOpenAI, **options: Any) -> Any:
    return await client.chat.completions.create(model="m", messages=[], **options)


def test_any_client_is_tagged_inside_a_session(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Without a client, calls of every client carry the job and count its turns."""
    ask(client)
    with agentkv.session() as job:
        ask(client)
        ask(client)
    ask(client)
    assert [turn.tags for turn in server.turns] == [
        {},
        {"job_id": job.job_id, "turn": 1},
        {"job_id": job.job_id, "turn": 2},
        {},
    ]


def test_leaving_releases_the_job(server: ScriptedServer, client: openai.OpenAI) -> None:
    """The server is told, in the background, that the job is over."""
    with agentkv.session(job_id="django-11451"):
        ask(client)
        assert server.released == []
    server.wait_for(lambda server: server.released == ["django-11451"])


def test_an_exception_passes_and_releases(server: ScriptedServer, client: openai.OpenAI) -> None:
    """A session swallows nothing and still cleans up."""

    def fail() -> None:
        with agentkv.session(job_id="a"):
            ask(client)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    server.wait_for(lambda server: server.released == ["a"])
    assert agentkv.current_job() is None


def test_a_job_that_never_called_releases_nothing(server: ScriptedServer) -> None:
    """No server knows of it."""
    with agentkv.session():
        pass
    assert agentkv.flush()
    assert server.requests == []


def test_a_session_with_a_client_covers_that_client_alone(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """job.client and the client are tagged; another client belongs to the session around."""
    other = client.with_options()
    with (
        agentkv.session(job_id="around") as around,
        agentkv.session(client, job_id="a", expected_turns=30) as job,
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


def test_a_drop_in_is_plain_again_after_its_session(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Tagging a job that was released would bring it back with nobody to end it."""
    with agentkv.session(client) as job:
        pass
    ask(job.client)
    assert server.turns[0].tags == {}
    assert job.summary().turns == 0


def test_a_made_up_id_is_new_each_time() -> None:
    """Entering the same session again makes another job."""
    session = agentkv.session()
    with session as first, session as second:
        pass
    assert first.job_id != second.job_id


def test_nested_sessions_have_the_outer_one_as_parent(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """A sub-agent's calls are its own; afterwards the outer job goes on."""
    with agentkv.session(job_id="outer"):
        ask(client)
        with agentkv.session(job_id="inner"):
            ask(client)
        ask(client)
        with agentkv.session(job_id="adopted", parent_job_id="other"):
            ask(client)
    assert [turn.tags for turn in server.turns] == [
        {"job_id": "outer", "turn": 1},
        {"job_id": "inner", "parent_job_id": "outer", "turn": 1},
        {"job_id": "outer", "turn": 2},
        {"job_id": "adopted", "parent_job_id": "other", "turn": 1},
    ]
    server.wait_for(lambda server: server.released == ["inner", "adopted", "outer"])


def test_a_drop_in_inside_another_session_is_one_turn_of_its_own_job(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """job.client belongs to its job wherever it is used, and is counted once."""
    with (
        agentkv.session(client, job_id="mine") as mine,
        agentkv.session(job_id="around") as around,
    ):
        ask(mine.client)
        ask(client)
    assert [turn.tags["job_id"] for turn in server.turns] == ["mine", "around"]
    assert (mine.summary().turns, around.summary().turns) == (1, 1)


def test_a_decorated_function_is_a_job_per_call(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """The decorator keeps the function's name and result."""

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
    server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """One session object, many calls under way."""

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
    """Its body runs in pieces inside of whoever asks for them."""
    with pytest.raises(TypeError, match="use `with` in its body"):

        @agentkv.session()
        def pieces() -> Any:
            yield 1


@pytest.mark.asyncio
async def test_async_with_tags_and_releases(
    server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """The same in async code, with a client and without."""
    async with agentkv.session(async_client, job_id="a") as job:
        await ask_async(job.client)
        async with agentkv.session(job_id="b"):
            await ask_async(async_client)
    assert [turn.tags for turn in server.turns] == [
        {"job_id": "a", "turn": 1},
        {"job_id": "b", "parent_job_id": "a", "turn": 1},
    ]
    server.wait_for(lambda server: server.released == ["b", "a"])


@pytest.mark.asyncio
async def test_gathered_calls_of_one_job_have_turns_of_their_own(
    server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """Concurrent requests of a job get numbers without holes or repeats."""
    async with agentkv.session() as job:
        await asyncio.gather(*(ask_async(async_client) for _ in range(8)))
    assert sorted(turn.tags["turn"] for turn in server.turns) == list(range(1, 9))
    assert job.summary().turns == 8


def test_the_current_job_is_the_innermost() -> None:
    """None outside; with or without a client inside."""
    assert agentkv.current_job() is None
    with agentkv.session() as outer:
        assert agentkv.current_job() is outer
        with agentkv.session() as inner:
            assert agentkv.current_job() is inner
        assert agentkv.current_job() is outer
    assert agentkv.current_job() is None


def test_sessions_left_out_of_order_do_not_mix() -> None:
    """Two generators can interleave theirs in one thread."""

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
    """An async generator may be closed elsewhere than it began."""

    async def stretch() -> Any:
        async with agentkv.session() as job:
            yield job

    generator = stretch()
    job = await asyncio.create_task(anext(generator))
    await asyncio.create_task(generator.aclose())
    assert job.is_over


def test_the_last_step_is_said_when_known(server: ScriptedServer, client: openai.OpenAI) -> None:
    """By job.last_step(), for one request; release follows all the same."""
    with agentkv.session(client) as job:
        ask(job.client)
        job.last_step()
        ask(job.client)
    assert [turn.tags.get("is_last_step") for turn in server.turns] == [None, True]


def test_expected_turns_are_a_hint_and_a_limit_is_a_promise(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Only limit_turns makes the last expected turn the last step."""
    with agentkv.session(client, expected_turns=1) as job:
        ask(job.client)
        job.limit_turns(2)
        ask(job.client)
    assert [turn.tags.get("is_last_step") for turn in server.turns] == [None, True]
    assert [turn.tags["expected_turns"] for turn in server.turns] == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": ""},
        {"job_id": "x" * 1_000_000},
        {"job_id": 7},
        {"parent_job_id": "x" * 257},
        {"expected_turns": 0},
        {"expected_turns": 1.5},
    ],
)
def test_wrong_tags_are_refused_at_once(wrong: dict[str, Any]) -> None:
    """Before anything is sent, with the field's name."""
    with pytest.raises(agentkv.TagError, match=next(iter(wrong))):
        agentkv.session(**wrong)


@pytest.mark.parametrize("wrong", [0, None, True, 1.5])
def test_a_wrong_limit_is_refused(wrong: Any) -> None:
    """The promise has the same range as the hint, and its own name."""
    with agentkv.session() as job, pytest.raises(agentkv.TagError, match="num_turns: got"):
        job.limit_turns(wrong)


def test_what_is_no_client_is_refused() -> None:
    """The error says what came and what is wanted."""
    with pytest.raises(TypeError, match="got str, allowed is an OpenAI"):
        agentkv.session("http://localhost:8000/v1")


def test_a_class_of_clients_is_refused() -> None:
    """It has all that a client has, and no server."""
    with pytest.raises(TypeError, match=r"got the class OpenAI, allowed .*session\(OpenAI\("):
        agentkv.session(openai.OpenAI)


def test_the_server_may_be_named_by_a_clients_base_url(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """Which is an object of the SDK's HTTP client, not text."""
    assert not isinstance(client.base_url, str)
    with agentkv.session(client, server=client.base_url) as job:
        ask(job.client)
    assert server.turns[0].tags["turn"] == 1


@pytest.mark.parametrize("wrong", [5, b"http://127.0.0.1", ["http://127.0.0.1"]])
def test_what_is_no_url_of_a_server_is_refused(wrong: Any) -> None:
    """At once, not with the first call."""
    with pytest.raises(TypeError, match=r"session\(server=\): got .* allowed is the URL"):
        agentkv.session(server=wrong)


def test_an_unknown_way_with_missing_servers_is_refused() -> None:
    """The three allowed ones are named."""
    with pytest.raises(ValueError, match="'warn', 'raise', 'ignore'"):
        agentkv.session(on_missing_server="panic")  # type: ignore[call-overload]


def test_uninstrument_puts_everything_back(server: ScriptedServer, client: openai.OpenAI) -> None:
    """The SDK's and the threads' methods are the originals again; a new session works anew."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from openai._base_client import AsyncAPIClient, SyncAPIClient

    def methods() -> tuple[object, ...]:
        return (
            SyncAPIClient.request,
            AsyncAPIClient.request,
            threading.Thread.start,
            ThreadPoolExecutor.submit,
        )

    originals = methods()
    with agentkv.session():
        assert not set(methods()) & set(originals)
        agentkv.uninstrument()
        assert methods() == originals
        ask(client)
    with agentkv.session():
        ask(client)
    assert [bool(turn.tags) for turn in server.turns] == [False, True]


def test_a_session_with_a_client_leaves_the_sdk_alone(client: openai.OpenAI) -> None:
    """Nobody else's client is concerned."""
    from openai._base_client import SyncAPIClient

    original = SyncAPIClient.request
    with agentkv.session(client):
        assert SyncAPIClient.request is original


def test_uninstrument_beneath_another_patch_falls_silent(
    server: ScriptedServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody wrapped the method on top of ours, ours stays there and does nothing."""
    from openai._base_client import SyncAPIClient

    with agentkv.session():
        ours = SyncAPIClient.request
        with monkeypatch.context() as patch:
            theirs: Any = lambda *args, **options: ours(*args, **options)  # noqa: E731
            patch.setattr(SyncAPIClient, "request", theirs)
            agentkv.uninstrument()
            ask(client)
    agentkv.uninstrument()
    assert server.turns[0].tags == {}
