"""Calls of a framework's functions as jobs, turns of agents, and tool calls."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

import agentkv
from agentkv.client.patches import Patch
from agentkv.client.server import forget_servers
from agentkv.integrations.runs import a_run, a_tool, a_turn, until
from tests.integrations import toy_framework
from tests.integrations.toy_framework import Agent, Team
from tests.scripted_server import ScriptedServer

Ask = Callable[[], Any]
MESSAGES = [{"role": "user", "content": "hello"}]
RUNS = (
    "run run_again run_async returning_a_coroutine stream stream_async opened started inherited "
    "static of_the_class"
)


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    """The toy framework's runs are jobs, its tool calls tools."""
    forget_servers()
    hooks = {
        **{
            f"Agent.{name}": a_run(lambda call: call.get("self", "a class"))
            for name in RUNS.split()
        },
        "Agent.handle": a_run(follow=until(lambda handle: handle.task)),
        "Team.run": a_run(lambda call: call["agents"][0]),
        "take_turn": a_turn(lambda call: call["agent"]),
        "Agent.call_tool": a_tool(lambda call: (call["name"], call["arguments"])),
    }
    for target, wrap in hooks.items():
        Patch(f"{toy_framework.__name__}:{target}", wrap).install()
    yield
    agentkv.uninstrument()
    assert agentkv.flush(timeout_s=20)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server
        assert agentkv.flush(timeout_s=20)


@pytest.fixture
def turn(server: ScriptedServer) -> Iterator[Callable[[], str]]:
    """One call of the model."""
    with openai.OpenAI(base_url=server.base_url, api_key="key") as client:
        yield lambda: client.chat.completions.create(model="m", messages=MESSAGES)


@pytest.fixture
def turn_async(server: ScriptedServer) -> Callable[[], Any]:
    """One call of the model, awaited."""

    async def turn() -> Any:
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="key") as client:
            return await client.chat.completions.create(model="m", messages=MESSAGES)

    return turn


def turns(server: ScriptedServer) -> list[tuple[int, int | None]]:
    """For each turn that arrived, the number of its job, from 0 in order, and the turn's number."""
    job_ids = [request.tags.get("job_id") for request in server.turns]
    order = list(dict.fromkeys(job_ids))
    return [
        (order.index(request.tags.get("job_id")), request.tags.get("turn"))
        for request in server.turns
    ]


def ended(server: ScriptedServer, num_jobs: int) -> bool:
    """Whether all jobs were released, once each, and no job is current here."""
    assert agentkv.flush(timeout_s=20)
    assert agentkv.current_job() is None
    return len(server.released) == num_jobs == len(set(server.released))


@pytest.mark.parametrize("method", ["inherited", "static"])
def test_a_plain_call_is_a_job(server: ScriptedServer, turn: Ask, method: str) -> None:
    """A call that returns a value is one job, released when it returns; each call is another.

    A replaced class method is still given the class that it is called on.
    """

    class Special(Agent):
        pass

    for _ in range(2):
        getattr(Agent(), method)(turn)
    assert Special.of_the_class(turn)[0] is Special
    assert turns(server) == [(0, 1), (1, 1), (2, 1)]
    assert ended(server, 3)


def test_tools_are_timed_one_by_one(server: ScriptedServer, turn: Ask) -> None:
    """Each tool call of a run is reported by its name; one that fails counts as well."""
    with pytest.raises(KeyError):
        Agent().run(turn, "shell", "broken")
    assert turns(server) == [(0, 1), (0, 2)]
    assert ended(server, 1)
    assert [event["tool"] for _, event in server.tool_events if event["state"] == "finished"] == [
        "shell",
        "broken",
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "sent"),
    [
        ("bash", {"command": "ls -l"}, ("bash", "ls -l")),
        ("bash", '{"command": "ls -l"}', ("bash", "ls -l")),
        ("bash", "ls -l", ("bash", "ls -l")),
        ("lookup", {"query": "kv"}, ("lookup", None)),
        ("lookup", None, ("lookup", None)),
        ("lookup", object(), ("lookup", None)),
    ],
)
def test_arguments_give_the_command(
    server: ScriptedServer, turn: Ask, name: str, arguments: object, sent: tuple[str, str | None]
) -> None:
    """Arguments may be a mapping, JSON text or free text; a shell's hold its command."""
    agent = Agent()
    with agentkv.session():
        turn()
        agent.call_tool(name, arguments)
    assert agentkv.flush(timeout_s=20)
    event = server.tool_events[0][1]
    assert (event["tool"], event.get("command")) == sent


def test_a_tool_within_a_tool_is_part_of_it(server: ScriptedServer, turn: Ask) -> None:
    """A tool call that a tool makes in the same job is not reported a second time."""
    Agent().run(turn, "nested")
    assert ended(server, 1)
    assert [event["tool"] for _, event in server.tool_events] == ["nested", "nested"]


def test_an_agent_in_a_tool_is_a_child(server: ScriptedServer, turn: Ask) -> None:
    """A run that a tool of another run begins is a child job, and both are released."""
    Agent().run(turn, "sub-agent")
    assert turns(server) == [(0, 1), (1, 1), (0, 2)]
    lead, child, _ = (request.tags for request in server.turns)
    assert "parent_job_id" not in lead
    assert child["parent_job_id"] == lead["job_id"]
    assert ended(server, 2)


def test_an_agent_that_runs_itself_is_one_job(server: ScriptedServer, turn: Ask) -> None:
    """A run method that calls another one of the same agent makes no second job."""
    Agent().run_again(turn)
    assert turns(server) == [(0, 1)]
    assert ended(server, 1)


def test_agents_that_take_turns_are_jobs_of_their_own(server: ScriptedServer, turn: Ask) -> None:
    """In a run with handoffs the first agent has the run's job, each other one a child of it."""
    first, second = object(), object()
    Team().run([first, second, second, first], turn)
    assert turns(server) == [(0, 1), (1, 1), (1, 2), (0, 2)]
    assert server.turns[1].tags["parent_job_id"] == server.turns[0].tags["job_id"]
    assert agentkv.flush(timeout_s=20)
    # with each handoff the job that loses control is released, and both at the end
    jobs = [server.turns[index].tags["job_id"] for index in (0, 1)]
    assert server.released == [jobs[0], jobs[1], jobs[1], jobs[0]]
    # a tool belongs to the agent that had the last turn
    ended_tools = [of for of, event in server.tool_events if event["state"] == "finished"]
    assert ended_tools == [jobs[0], jobs[1], jobs[1], jobs[0]]


def test_a_run_lasts_as_long_as_the_task_behind_its_handle(
    server: ScriptedServer, turn_async: Ask
) -> None:
    """A method that returns a handle at once is one job until the handle's task is done."""

    async def main() -> None:
        handle = Agent().handle(turn_async)
        assert agentkv.current_job() is None
        await handle.task

    asyncio.run(main())
    assert turns(server) == [(0, 1), (0, 2)]
    assert ended(server, 1)


def test_generators_are_jobs_in_each_of_their_steps(server: ScriptedServer, turn: Ask) -> None:
    """Two generators that are consumed by turns are two jobs; values and errors sent in arrive.

    The job of a generator that nobody finishes ends with the generator.
    """
    one, two = Agent().stream(turn), Agent().stream(turn)
    next(one), next(two)
    assert agentkv.current_job() is None
    assert one.send("sent") == "sent"  # type: ignore[attr-defined]
    next(one), two.close()  # type: ignore[attr-defined]
    assert turns(server) == [(0, 1), (1, 1), (0, 2)]
    assert list(one) == []
    failing = Agent().stream(turn)
    next(failing)
    with pytest.raises(KeyError):
        failing.throw(KeyError())  # type: ignore[attr-defined]
    for _ in Agent().stream(turn):
        break
    gc.collect()
    assert ended(server, 4)


@pytest.mark.parametrize("method", ["run_async", "returning_a_coroutine", "started"])
def test_many_runs_at_once_are_as_many_jobs(
    server: ScriptedServer, turn_async: Ask, method: str
) -> None:
    """Runs in tasks of one loop keep their turns apart, however the method is made."""

    async def main() -> None:
        await asyncio.gather(*(getattr(Agent(), method)(turn_async) for _ in range(4)))

    asyncio.run(main())
    assert sorted(turns(server)) == sorted((job, turn) for job in range(4) for turn in (1, 2))
    assert ended(server, 4)


def test_runs_in_threads_are_as_many_jobs(server: ScriptedServer, turn: Ask) -> None:
    """Runs in threads of a pool keep their turns apart."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: Agent().run(turn, "shell"), range(4)))
    assert sorted(turns(server)) == sorted((job, turn) for job in range(4) for turn in (1, 2))
    assert ended(server, 4)


def test_a_cancelled_run_is_released(server: ScriptedServer, turn_async: Ask) -> None:
    """A task that is cancelled in the middle of its run releases the job."""

    async def main() -> None:
        async def turn() -> None:
            await turn_async()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(Agent().run_async(turn))
        await asyncio.to_thread(server.wait_for, lambda server: server.turns)
        await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended(server, 1)


def test_async_generators_are_jobs_in_each_of_their_steps(
    server: ScriptedServer, turn_async: Ask
) -> None:
    """An async generator's steps belong to its job; left half-way, it ends with its closing."""

    async def main() -> None:
        stream = Agent().stream_async(turn_async)
        await anext(stream)
        assert agentkv.current_job() is None
        assert await stream.asend("sent") == "sent"  # type: ignore[attr-defined]
        async for _ in stream:
            pass
        async with contextlib.aclosing(Agent().stream_async(turn_async)) as stream:  # type: ignore[type-var]
            await anext(stream)
        stream = Agent().stream_async(turn_async)
        await anext(stream)
        with pytest.raises(KeyError):
            await stream.athrow(KeyError())  # type: ignore[attr-defined]

    asyncio.run(main())
    assert turns(server) == [(0, 1), (0, 2), (1, 1), (2, 1)]
    assert ended(server, 3)


def test_an_async_context_manager_is_a_job_until_it_is_left(
    server: ScriptedServer, turn_async: Ask
) -> None:
    """The block within belongs to the job, and so do the tasks that it starts."""

    async def main() -> None:
        async with Agent().opened(turn_async):
            await asyncio.gather(turn_async(), turn_async())
        assert agentkv.current_job() is None

    asyncio.run(main())
    assert sorted(turns(server)) == [(0, 1), (0, 2), (0, 3)]
    assert ended(server, 1)


def test_the_callers_session_is_the_job_of_its_run(server: ScriptedServer, turn: Ask) -> None:
    """A run right inside of a session is that session's job, which goes on after it."""
    with agentkv.session(job_id="mine"):
        Agent().run(turn, "sub-agent")
        Agent().run(turn)
        assert agentkv.flush(timeout_s=20)
        assert len(server.released) == 1  # the sub-agent alone
    tags = [(request.tags["job_id"], request.tags["turn"]) for request in server.turns]
    assert tags[0] == ("mine", 1)
    assert tags[2:] == [("mine", 2), ("mine", 3)]
    assert server.turns[1].tags["parent_job_id"] == "mine"


def test_a_session_has_one_run_at_a_time(server: ScriptedServer, turn: Ask) -> None:
    """A second run that begins in a session while another has it is a child job."""
    with agentkv.session(job_id="mine"):
        one, two = Agent().stream(turn), Agent().stream(turn)
        next(one), next(two), next(one), next(one)
    tags = [request.tags for request in server.turns]
    assert [tag["turn"] for tag in tags] == [1, 1, 2]
    assert [tag.get("parent_job_id") for tag in tags] == [None, "mine", None]


def test_a_failure_of_ours_is_logged_once(
    server: ScriptedServer,
    turn: Ask,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a run or tool cannot be followed the original runs, and the log says so once."""
    agentkv.uninstrument()
    monkeypatch.setattr("agentkv.client.patches._has_logged_failure", False)
    for name, kind in (("run", a_run), ("call_tool", a_tool)):
        wrap = kind(lambda call: call["no such argument"])
        Patch(f"{toy_framework.__name__}:Agent.{name}", wrap).install()
    assert len(Agent().run(turn, "shell", "shell")) == 3
    assert len([record for record in caplog.records if "could not follow" in record.message]) == 1
