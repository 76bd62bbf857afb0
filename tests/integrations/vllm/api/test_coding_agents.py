"""What coding agents send by themselves becomes jobs: small replays of their requests.

Each replay keeps the names of headers and fields that the agent's own binary sent to a scripted
server (docs/reference/compatibility.md names the versions); the values are made up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.integrations.vllm.api.fake_engine import make_app

pytestmark = pytest.mark.asyncio

SESSION = "0c0ffee0-1111-4222-8333-444455556666"
THREAD = "0c0ffee0-7777-4888-8999-aaaabbbbcccc"


@dataclass(frozen=True)
class Sent:
    """One request of an agent and the tags that it must have for the engine."""

    what: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    tags: dict[str, Any] = field(default_factory=dict)


def chat(tool: str | None, **fields: Any) -> dict[str, Any]:
    tools = [] if tool is None else [{"type": "function", "function": {"name": tool}}]
    messages = [{"role": "user", "content": "do it"}]
    return {"messages": messages, **({"tools": tools} if tools else {}), **fields}


def claude_code(what: str, tools: list[str], tags: dict[str, Any], **headers: str) -> Sent:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "do it"}],
        "tools": [{"name": name, "input_schema": {}} for name in tools],
        "metadata": {"user_id": f'{{"session_id":"{SESSION}"}}'},
        "stream": True,
    }
    names = {"x-app": "cli", "x-claude-code-session-id": SESSION, **headers}
    return Sent(f"Claude Code, {what}", "/v1/messages", names, body, tags)


def codex(what: str, thread: str, tags: dict[str, Any], *, proxied: bool = False) -> Sent:
    is_child = thread != SESSION
    parent = {"x-codex-parent-thread-id": SESSION} if is_child else {}
    headers = {"session-id": SESSION, "thread-id": thread, "originator": "codex_exec", **parent}
    body = {
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": "do it"}],
        "tools": [{"type": "function", "name": "exec_command"}],
        "prompt_cache_key": SESSION,  # a sub-agent sends its session's, too
        "client_metadata": {"session_id": SESSION, "thread_id": thread, **parent},
        "store": False,
    }
    return Sent(f"Codex, {what}", "/v1/responses", {} if proxied else headers, body, tags)


def opencode(what: str, session: str, tool: str | None, tags: dict[str, Any]) -> Sent:
    """A request of OpenCode or Kilo Code, which send the same."""
    headers = {"x-session-id": session, "x-session-affinity": session}
    if session == "ses_child":
        headers["x-parent-session-id"] = "ses_main"
    return Sent(f"OpenCode, {what}", "/v1/chat/completions", headers, chat(tool), tags)


def openhands(what: str) -> Sent:
    body = chat("terminal", prompt_cache_key=SESSION)
    return Sent(f"OpenHands, {what}", "/v1/chat/completions", {}, body, {"job_id": SESSION})


CHILD_OF_CLAUDE = {"job_id": f"{SESSION}/a1b2", "parent_job_id": SESSION}
CHILD_OF_CODEX = {"job_id": THREAD, "parent_job_id": SESSION}
SENT = [
    claude_code("main", ["Bash", "Agent"], {"job_id": SESSION}),
    claude_code("title", [], {"job_id": SESSION}),
    claude_code("sub-agent", ["Bash"], CHILD_OF_CLAUDE, **{"x-claude-code-agent-id": "a1b2"}),
    claude_code(
        "sub-agent's sub-agent",
        ["Bash"],
        {"job_id": f"{SESSION}/c3", "parent_job_id": f"{SESSION}/a1b2"},
        **{"x-claude-code-agent-id": "c3", "x-claude-code-parent-agent-id": "a1b2"},
    ),
    codex("main", SESSION, {"job_id": SESSION}),
    codex("sub-agent", THREAD, CHILD_OF_CODEX),
    codex("main behind a proxy", SESSION, {"job_id": SESSION}, proxied=True),
    codex("sub-agent behind a proxy", THREAD, CHILD_OF_CODEX, proxied=True),
    opencode("main", "ses_main", "bash", {"job_id": "ses_main"}),
    opencode("title", "ses_main", None, {"job_id": "ses_main"}),
    opencode(
        "sub-agent", "ses_child", "bash", {"job_id": "ses_child", "parent_job_id": "ses_main"}
    ),
    openhands("main"),
    openhands("sub-agent"),
]


async def tags_in_engine(sent: Sent) -> dict[str, Any]:
    """The tags that the scheduler finds: in vllm_xargs, else in the header that vLLM reads."""
    transport = httpx.ASGITransport(make_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        reply = await client.post(sent.path, json=sent.body, headers=sent.headers)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    native = answer["headers"].get("x-session-id")
    tags = json.loads(answer["text"]).get("vllm_xargs", {})
    return {**({"job_id": native} if native else {}), **tags}


@pytest.mark.parametrize("sent", SENT, ids=lambda sent: sent.what)
async def test_an_agents_request_gets_its_tags(sent: Sent) -> None:
    """Sub-agents are jobs of their own with a parent; the engine tells titles from turns."""
    assert await tags_in_engine(sent) == sent.tags


@pytest.mark.parametrize(
    ("fields", "job_id"),
    [
        ({"prompt_cache_key": SESSION}, SESSION),
        ({"prompt_cache_key": SESSION, "tools": []}, None),
        ({"prompt_cache_key": "my-app"}, None),
        ({"prompt_cache_key": [SESSION]}, None),
        ({"prompt_cache_key": SESSION, "client_metadata": {"my": "own"}}, None),
        ({"prompt_cache_key": SESSION, "job_id": "j"}, "j"),
        ({"prompt_cache_key": SESSION, "session_id": "s"}, "s"),
    ],
)
async def test_a_cache_key_is_a_job_only_as_agents_send_it(
    fields: dict[str, Any], job_id: str | None
) -> None:
    """It is a UUID in a request that offers tools and names no job otherwise."""
    sent = Sent("cache key", "/v1/chat/completions", {}, chat("bash", **fields))
    assert (await tags_in_engine(sent)).get("job_id") == job_id
