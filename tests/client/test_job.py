"""Tools: timed, reported to the server when they start and end, and carried by the next turn."""

from __future__ import annotations

from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.protocol import parse_tags, parse_tool_event
from tests.scripted_apis import ScriptedServer

CHAT: dict[str, Any] = {"model": "m", "messages": []}
COMMAND = "API_TOKEN=a pytest -x"
CALL = agentkv.ToolCall("bash", COMMAND, {"command": COMMAND, "timeout_s": 9}, call_id="c")


def test_a_tool_is_reported_when_it_starts_and_when_it_ends(
    server: ScriptedServer, client: OpenAI
) -> None:
    """The start arrives while the tool runs; the next turn carries the command, as it is, again."""
    with agentkv.session(client, job_id="a") as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool(CALL) as run:
            assert run.duration_s is None
            server.wait_for(lambda server: len(server.tool_events) == 1)
        server.wait_for(lambda server: len(server.tool_events) == 2)
        job.client.chat.completions.create(**CHAT)
    (job_id, started), (_, finished) = server.tool_events
    assert job_id == "a"
    tool = {"tool": "bash", "command": COMMAND, "limit_s": 9.0}
    assert started == {"state": "started", **tool, "turn": 1}
    assert finished == {**started, "state": "finished", "duration_s": run.duration_s}
    assert run.duration_s is not None
    assert 0 < run.duration_s < 10
    assert server.turns[1].tags["last_tool"] == COMMAND
    assert server.turns[1].tags["last_tool_s"] == run.duration_s
    assert job.summary().tool_calls == 1


@pytest.mark.asyncio
async def test_tools_of_async_agents_are_measured(
    server: ScriptedServer, async_client: AsyncOpenAI
) -> None:
    """`async with job.tool(...)` does the same as `with`, and a tool's exception passes."""
    async with agentkv.session(async_client) as job:
        await job.client.chat.completions.create(**CHAT)
        with pytest.raises(ZeroDivisionError):
            async with job.tool(CALL) as run:
                _ = 1 / 0
    assert run.duration_s is not None
    assert job.summary().tool_calls == 1
    server.wait_for(lambda server: len(server.tool_events) == 2)


def test_a_tool_before_the_first_turn_is_not_reported_alone(
    server: ScriptedServer, client: OpenAI
) -> None:
    """No server knows the job before its first turn, which carries the tool."""
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
    ids=["empty", "long", "surrogate", "no command", "no name", "long name and command"],
)
def test_any_tool_can_be_sent(
    server: ScriptedServer, client: OpenAI, call: agentkv.ToolCall | str
) -> None:
    """Any text of a model leaves within the limits of the wire."""
    with agentkv.session(client) as job:
        job.client.chat.completions.create(**CHAT)
        with job.tool(call):
            pass
        job.client.chat.completions.create(**CHAT)
        server.wait_for(lambda server: len(server.tool_events) == 2)
    for _job_id, event in server.tool_events:
        parse_tool_event(event)
    assert parse_tags(server.turns[1].tags).last_tool


@pytest.mark.parametrize("call", [None, {"name": "bash"}, ["ls", "-l"]], ids=str)
def test_a_wrong_argument_of_tool_is_refused(call: Any) -> None:
    """job.tool() raises TypeError before the tool runs, and says what is allowed."""
    with agentkv.session() as job, pytest.raises(TypeError, match="parse_tool_calls"):
        job.tool(call)


def test_an_agent_as_in_the_readme(client: OpenAI) -> None:
    """Ask, parse, run each command under the job's clock, ask again, print the summary."""
    commands = []
    with ScriptedServer(["```bash\nls\n```", "Done."]) as server:
        client = client.with_options(base_url=server.base_url)
        with agentkv.session(client, job_id="django-11451", expected_turns=30) as job:
            while calls := agentkv.parse_tool_calls(job.client.chat.completions.create(**CHAT)):
                for call in calls:
                    with job.tool(call):
                        commands.append(call.command)
            assert job.summary().hit_rate is None
        text = str(job.summary())
    assert commands == ["ls"]
    assert len(server.tool_events) == 2
    assert server.turns[1].tags["last_tool"] == "ls"
    assert "cached tokens  160" in text
    assert "80% of their prompts came from the cache" in text
