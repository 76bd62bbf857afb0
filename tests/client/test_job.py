"""Tools: timed, told to the server when they start and end, and carried by the next turn."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import agentkv
from agentkv.protocol import parse_tags, parse_tool_event
from agentkv.testing import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}
CALL = agentkv.ToolCall("bash", "pytest -x", {"command": "pytest -x"}, call_id="c")


def test_a_tool_is_told_when_it_starts_and_when_it_ends(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """The start arrives while the tool runs, so that the server can pin by it."""
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool(CALL):
            server.wait_for(lambda server: len(server.tool_events) == 1)
        server.wait_for(lambda server: len(server.tool_events) == 2)
    (job_id, started), (_, finished) = server.tool_events
    assert job_id == "a"
    assert started == {"state": "started", "tool": "bash", "command": "pytest -x", "turn": 1}
    assert finished == {**started, "state": "finished", "duration_s": finished["duration_s"]}
    assert 0 < finished["duration_s"] < 10


def test_the_next_turn_carries_the_tool(server: ScriptedServer, client: openai.OpenAI) -> None:
    """For servers, and moments, that the events did not reach."""
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool(CALL) as run:
            assert run.duration_s is None
        job.client.chat.completions.create(**CHAT)
    assert server.turns[1].tags["last_tool"] == "pytest -x"
    assert server.turns[1].tags["last_tool_s"] == run.duration_s
    assert job.summary().tool_calls == 1
    assert job.summary().gap_s == 0.0


def test_a_tool_that_fails_is_measured(client: openai.OpenAI) -> None:
    """Its exception passes; its time counts."""
    with agentkv.session(client) as job, pytest.raises(ZeroDivisionError), job.tool("divide"):
        _ = 1 / 0
    assert job.summary().tool_calls == 1


@pytest.mark.asyncio
async def test_tools_of_async_agents_are_measured(
    server: ScriptedServer, async_client: openai.AsyncOpenAI
) -> None:
    """async with does the same."""
    async with agentkv.session(async_client) as job:
        await job.client.chat.completions.create(**CHAT)
        async with job.tool(CALL) as run:
            pass
    assert run.duration_s is not None
    server.wait_for(lambda server: len(server.tool_events) == 2)


def test_unmeasured_time_between_turns_is_a_gap(client: openai.OpenAI) -> None:
    """It counts as such and names no tool."""
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        job.client.chat.completions.create(**CHAT)
    assert job.summary().gap_s > 0
    assert job.summary().tool_s == 0


def test_a_tool_before_the_first_turn_is_not_told(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """The server does not know the job yet and holds nothing for it."""
    with agentkv.session(client) as job:
        with job.tool("git clone"):
            pass
        assert agentkv.flush()
        assert server.tool_events == []
        job.client.chat.completions.create(**CHAT)
    assert server.turns[0].tags["last_tool"] == "git clone"


@pytest.mark.parametrize(
    "call",
    [
        "",
        "x" * 2_000_000,
        "echo \ud800",
        agentkv.ToolCall("web_search"),
        agentkv.ToolCall("", ""),
        agentkv.ToolCall("n" * 5000, "c" * 2_000_000),
    ],
)
def test_any_tool_can_be_sent(
    server: ScriptedServer, client: openai.OpenAI, call: agentkv.ToolCall | str
) -> None:
    """Whatever the model wrote, what goes out is within the wire's limits."""
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool(call):
            pass
        job.client.chat.completions.create(**CHAT)
        server.wait_for(lambda server: len(server.tool_events) == 2)
    for _job_id, event in server.tool_events:
        parse_tool_event(event)
    assert parse_tags(server.turns[1].tags).last_tool


def test_a_job_id_with_odd_characters_reaches_its_routes(
    server: ScriptedServer, client: openai.OpenAI
) -> None:
    """It is part of a path there."""
    job_id = "työ/1?x=#%20 y"
    with agentkv.session(client, job_id=job_id) as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool("ls"):
            pass
    server.wait_for(lambda server: server.released == [job_id])
    assert [told for told, _ in server.tool_events] == [job_id, job_id]


def test_an_agent_as_in_the_readme(client: openai.OpenAI) -> None:
    """Ask, parse, run each command under the job's clock, ask again, print the summary."""
    with (
        ScriptedServer(["```bash\nls\n```", "Done."]) as server,
        agentkv.session(
            client.with_options(base_url=server.base_url), job_id="django-11451", expected_turns=30
        ) as job,
    ):
        commands = []
        while True:
            reply = job.client.chat.completions.create(**CHAT)
            calls = agentkv.parse_tool_calls(reply)
            if not calls:
                break
            for call in calls:
                with job.tool(call):
                    commands.append(call.command)
        server.wait_for(lambda server: len(server.tool_events) == 2)
    assert commands == ["ls"]
    assert server.turns[1].tags["last_tool"] == "ls"
    assert "cached tokens  160 (80% of prompt)" in str(job.summary())


@pytest.mark.parametrize("call", [None, {"name": "bash"}, ["ls", "-l"]], ids=str)
def test_what_is_no_call_is_refused_by_name(call: Any) -> None:
    """Before the tool runs, and saying what is wanted."""
    with agentkv.session() as job, pytest.raises(TypeError, match="parse_tool_calls"):
        job.tool(call)
