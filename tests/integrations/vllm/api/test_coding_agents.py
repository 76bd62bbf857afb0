"""What coding agents send by themselves becomes jobs: small replays of their requests.

Each replay keeps the names of headers and fields that the agent's own binary sent to a scripted
server (docs/reference/compatibility.md names the versions); the values are made up.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.integrations.vllm.api.fake_engine import make_app

pytestmark = pytest.mark.asyncio

SESSION = "0c0ffee0-1111-4222-8333-444455556666"
THREAD = "0c0ffee0-7777-4888-8999-aaaabbbbcccc"
CHAT, ANTHROPIC, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SAID = {"messages": [{"role": "user", "content": "do it"}]}
TOOL = {"tools": [{"type": "function", "function": {"name": "bash"}}]}
CLAUDE = {"x-app": "cli", "x-claude-code-session-id": SESSION}
CLAUDE_BODY = {
    **SAID,
    "tools": [{"name": "Bash", "input_schema": {}}],
    "metadata": {"user_id": f'{{"session_id":"{SESSION}"}}'},
    "stream": True,
}
OPENCODE = {"x-session-id": "ses_main", "x-session-affinity": "ses_main"}


def codex(thread: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The headers and the body of one of its threads, which says all of it again."""
    parent = {"x-codex-parent-thread-id": SESSION} if thread != SESSION else {}
    named = {"session_id": SESSION, "thread_id": thread, **parent}
    body = {
        "input": [{"type": "message", "role": "user", "content": "do it"}],
        "tools": [{"type": "function", "name": "exec_command"}],
        "prompt_cache_key": SESSION,  # a sub-agent sends its session's, too
        "client_metadata": named,
        "store": False,
    }
    headers = {name.replace("_id", "-id"): text for name, text in named.items()}
    return {**headers, "originator": "codex_exec"}, body


def child(job_id: str, parent: str = SESSION) -> dict[str, str]:
    return {"job_id": job_id, "parent_job_id": parent}


MAIN, OF_CODEX = {"job_id": SESSION}, child(THREAD)
AGENT, INNER = (
    {"x-claude-code-agent-id": "a1b2"},
    {"x-claude-code-agent-id": "c3", "x-claude-code-parent-agent-id": "a1b2"},
)
SENT: dict[str, tuple[str, dict[str, str], dict[str, Any], dict[str, Any]]] = {
    "Claude Code": (ANTHROPIC, CLAUDE, CLAUDE_BODY, MAIN),
    "its sub-agent": (ANTHROPIC, CLAUDE | AGENT, CLAUDE_BODY, child(f"{SESSION}/a1b2")),
    "that one's sub-agent": (
        *(ANTHROPIC, CLAUDE | INNER, CLAUDE_BODY),
        child(f"{SESSION}/c3", f"{SESSION}/a1b2"),
    ),
    "Codex": (RESPONSES, *codex(SESSION), MAIN),
    "Codex' sub-agent": (RESPONSES, *codex(THREAD), OF_CODEX),
    "Codex behind a proxy": (RESPONSES, {}, codex(SESSION)[1], MAIN),
    "its sub-agent there": (RESPONSES, {}, codex(THREAD)[1], OF_CODEX),
    "OpenCode": (CHAT, OPENCODE, SAID | TOOL, {"job_id": "ses_main"}),
    "OpenCode's title": (CHAT, OPENCODE, SAID, {"job_id": "ses_main"}),
    "OpenCode's sub-agent": (
        CHAT,
        {"x-session-id": "ses_child", "x-parent-session-id": "ses_main"},
        SAID | TOOL,
        child("ses_child", "ses_main"),
    ),
    "OpenHands": (CHAT, {}, {**SAID, **TOOL, "prompt_cache_key": SESSION}, MAIN),
}


async def tags_in_engine(path: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
    """The tags that the scheduler finds: in vllm_xargs, else in the header that vLLM reads."""
    transport = httpx.ASGITransport(make_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        reply = await client.post(path, json={"model": "m", **body}, headers=headers)
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    native = answer["headers"].get("x-session-id")
    tags = json.loads(answer["text"]).get("vllm_xargs", {})
    return {**({"job_id": native} if native else {}), **tags}


@pytest.mark.parametrize("name", SENT)
async def test_an_agents_request_gets_its_tags(name: str) -> None:
    """Sub-agents are jobs of their own with a parent; the engine tells titles from turns."""
    *sent, tags = SENT[name]
    assert await tags_in_engine(*sent) == tags


@pytest.mark.parametrize(
    ("fields", "job_id"),
    [
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
    assert (await tags_in_engine(CHAT, {}, {**SAID, **TOOL, **fields})).get("job_id") == job_id
