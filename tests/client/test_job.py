"""A job: its turns' numbers, its tools, reported and carried by the next turn, and its totals."""

from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

import agentkv
from agentkv.client.job import Job
from agentkv.protocol import Tags, parse_tags, parse_tool_event
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
        *("", " ", "x" * 2_000_000, "echo \ud800"),
        *(agentkv.ToolCall("web_search"), agentkv.ToolCall("n" * 5000, "c" * 2_000_000)),
    ],
    ids=["empty", "blank", "long", "surrogate", "no command", "long name and command"],
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


def test_a_wrong_argument_of_tool_is_refused() -> None:
    """job.tool() raises TypeError before the tool runs, and says what is allowed."""
    with agentkv.session() as job, pytest.raises(TypeError, match="parse_tool_calls"):
        job.tool({"name": "bash"})  # type: ignore[arg-type]


def test_the_next_request_takes_over_from_a_failed_turn() -> None:
    """It carries the number, the tool and the last step, so that the server sees a retry."""
    job: Job[None] = Job("job")
    job.end_tool("pytest", 7.0)
    job.last_step()
    failed = job.begin_turn()
    failed.end("failed")
    assert job.begin_turn().tags == failed.tags
    assert failed.tags == Tags("job", True, turn=1, last_tool="pytest", last_tool_s=7.0)


def test_the_number_of_a_failed_turn_is_for_its_retry_alone() -> None:
    """Whether another turn begins before or after it fails; it counts no more for the limit."""
    job: Job[None] = Job("job")
    job.limit_turns(3)
    first = job.begin_turn("one")
    first.end(500)
    second, third = job.begin_turn("two"), job.begin_turn("three")
    second.end(500)
    retries = [job.begin_turn(request) for request in ("one", "two", "one")]
    assert [turn.tags.turn for turn in (first, second, third, *retries)] == [1, 2, 3, 1, 2, 4]
    assert [turn.tags.is_last_step for turn in (third, *retries)] == [None, None, True, None]


def test_the_longest_tool_is_carried_by_the_next_turn_alone() -> None:
    """Of several tools the longest decides how long the pin had to last; it is sent once."""
    job: Job[None] = Job("job")
    for text, duration_s in (("ls", 0.1), ("make", 9.0), ("cat x", 0.2)):
        job.end_tool(text, duration_s)
    assert [job.begin_turn().tags.last_tool for _ in range(2)] == ["make", None]
    assert job.summary().tool_s == pytest.approx(9.3)


ANSWER = {
    "tokens": {
        **{"prompt_tokens": 2000, "hit_tokens": 800, "output_tokens": 50},
        **{"later_prompt_tokens": 1000, "later_hit_tokens": 750},
    }
}
"""What a server says of a job when it is released."""


def test_the_summary_adds_up_and_prints() -> None:
    """Turns and times are the client's, tokens those of all servers; or a line says why not."""
    job: Job[None] = Job("job")
    for _ in range(2):
        job.begin_turn().end()
    for said in (None, 7, [], {}, {"tokens": 1}, {"tokens": {}}):
        job.note_answer("http://a", said)
    job.no_tokens = "gone"
    assert job.summary().hit_rate is None
    assert str(job.summary()).splitlines() == [
        "job        job",
        "turns      2",
        "LLM time   0.00 s",
        "tool time  0.00 s (0 calls)",
        "tokens     not known: gone",
    ]
    for server in ("http://a", "http://b", "http://a"):
        job.note_answer(server, ANSWER)
    assert job.summary().hit_rate == 0.75
    assert str(job.summary()).splitlines()[4:] == [
        "prompt tokens  4,000",
        "cached tokens  1,600",
        "output tokens  100",
        "later turns    75% of their prompts came from the cache",
    ]
