"""What other software says about its jobs, as the one table of formats reads it."""

import base64
from typing import Any

import pytest

from agentkv.protocol import MAX_ID_CHARS, Tags, bounded_id
from agentkv.protocol.foreign import add_foreign

CLAUDE = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}
CODEX = {"thread-id": "t", "session-id": "s"}
HINT = base64.urlsafe_b64encode(b'{"session": "chat-1", "turn": 3}').decode().rstrip("=")


def of_headers(headers: dict[str, str]) -> Tags:
    return add_foreign(Tags(), (), headers)


@pytest.mark.parametrize(
    ("headers", "tags"),
    [
        ({"x-session-id": "ty%C3%B6"}, Tags("ty%C3%B6")),
        ({"x-session-id": "o", "x-parent-session-id": "p"}, Tags("o", parent_job_id="p")),
        ({"session_id": "older"}, Tags("older")),
        ({"x-session-affinity": "k"}, Tags("k")),
        ({**CLAUDE, "x-litellm-session-id": "s"}, Tags("s/a", parent_job_id="s")),
        ({"x-session-affinity": "k", "x-session-id": "o"}, Tags("o")),
        ({"x-grok-conv-id": "g"}, Tags("g")),
        ({"x-opencode-session": "chat", "x-session-affinity": "process"}, Tags("chat")),
        ({"x-litellm-session-id": "l", "x-affinity": "process"}, Tags("l")),
        ({"x-amp-thread-id": "t"}, Tags("t")),
        ({"x-conversation-id": "c"}, Tags("c")),
        ({"x-agent-session-id": "a", "x-agent-hint": HINT}, Tags("a")),
        ({"x-agent-hint": HINT}, Tags("chat-1")),
        ({"x-agent-hint": "e30"}, Tags()),
        ({"x-agent-hint": "no base64!"}, Tags()),
        ({"x-agent-hint": "W10"}, Tags()),
        ({"x-request-id": "r", "x-user-id": "u", "traceparent": "t"}, Tags()),
        (CLAUDE, Tags("s/a", parent_job_id="s")),
        ({**CLAUDE, "x-claude-code-parent-agent-id": "b"}, Tags("s/a", parent_job_id="s/b")),
        ({**CLAUDE, "x-parent-session-id": "p"}, Tags("s/a", parent_job_id="p")),
        ({**CLAUDE, "x-session-id": "o"}, Tags("o")),
        ({"x-claude-code-agent-id": "a"}, Tags()),
        (CODEX, Tags("t", parent_job_id="s")),
        ({**CODEX, "x-codex-parent-thread-id": "p"}, Tags("t", parent_job_id="p")),
        ({**CODEX, "thread-id": "s"}, Tags("s")),
        ({**CODEX, "x-codex-turn-metadata": '{"request_kind": "turn"}'}, Tags("t", None, "s")),
        (
            {"thread-id": "t", "x-codex-turn-metadata": '{"request_kind": "compaction"}'},
            Tags("t", max_ttl_s=0.0),
        ),
        ({"x-dynamo-session-id": "d", "x-dynamo-session-final": "True"}, Tags("d", True)),
        ({"x-dynamo-session-id": "d", "x-dynamo-session-final": "perhaps"}, Tags("d")),
        (
            {
                **{"x-deepseek-harness-session-id": "h", "x-deepseek-harness-compact": "1"},
                "x-deepseek-harness-parent-session-id": "p",
            },
            Tags("h", None, "p", max_ttl_s=0.0),
        ),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_session_headers_name_jobs(headers: dict[str, str], tags: Tags) -> None:
    """Sub-agents are jobs of their own, and a compaction leaves nothing that is worth a hold."""
    assert of_headers(headers) == tags


@pytest.mark.parametrize(
    ("body", "tags"),
    [
        (
            {
                "agentic_context": {
                    **{"program_id": "run-7", "session_id": "s", "parent_id": "run-1"},
                    **{"task_id": None, "step_id": "4", "expected_resume": False},
                    "kv_retention_ttl_seconds": 90,
                }
            },
            Tags("run-7", True, "run-1", 4, max_ttl_s=90.0),
        ),
        ({"agentic_context": '{"session_id": "s", "step_id": "s-1"}'}, Tags("s")),
        ({"agentic_context": {"session_id": "s"}, "session_id": "v"}, Tags("s")),
        (
            {"agent_hint": {"session_id": "h", "parent_session_id": "p", "expected_resume": True}},
            Tags("h", parent_job_id="p"),
        ),
        (
            {"agent_hint": {"session_id": "h", "cache_control": {"ttl": 30}}},
            Tags("h", max_ttl_s=30.0),
        ),
        (
            {
                "nvext": {
                    "agent_context": {"session_id": "x"},
                    "agent_hints": {"prefix_id": "tree", "total_requests": 12, "osl": 500},
                    "cache_control": {"type": "ephemeral", "ttl": "5m"},
                }
            },
            Tags("x", expected_turns=12, max_ttl_s=300.0),
        ),
        (
            {"nvext": {"agent_context": {"trajectory_id": "t", "parent_trajectory_id": "p"}}},
            Tags("t", parent_job_id="p"),
        ),
        ({"kv_transfer_params": {"agent_hint": {"trajectory_id": "u"}}}, Tags("u")),
        ({"kv_transfer_params": {"kv_hint": {"session_id": "k"}}}, Tags("k")),
        ({"nvext": {"agent_hints": {"prefix_id": "tree"}}}, Tags()),
        ({"session_params": {"session_id": "r"}}, Tags("r")),
        ({"conversation_id": "c"}, Tags("c")),
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "s"}'}}, Tags("s")),
        ({"metadata": {"user_id": "user_ab12", "session_id": "s"}}, Tags()),
        ({"client_metadata": {"thread_id": "t", "session_id": "s"}}, Tags("t", None, "s")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bodies_name_jobs(body: dict[str, Any], tags: Tags) -> None:
    """In the body itself, and in `vllm_xargs`, before the header that a router goes by."""
    assert add_foreign(Tags(), (body,), {}) == tags
    assert add_foreign(Tags(), ({}, {}, body), {"x-session-id": tags.job_id or ""}) == tags


def test_a_format_that_names_another_job_says_nothing_about_this_one() -> None:
    """Formats are not mixed; one that names no job, or the same, adds its fields."""
    body = {
        "agentic_context": {"program_id": "other", "expected_resume": False},
        "nvext": {"cache_control": {"ttl": "1h"}},
    }
    headers = {"x-dynamo-session-id": "mine", "x-dynamo-session-final": "1"}
    known = Tags(job_id="mine", turn=3)
    assert add_foreign(known, (body,), headers) == Tags("mine", True, turn=3, max_ttl_s=3600.0)
    assert add_foreign(Tags("ours"), (), headers) == Tags("ours")


def test_an_id_of_any_length_has_an_end() -> None:
    """A token that serves as a session's id is hashed, and a sub-agent's parent is its session."""
    token = "eyJ" + "x" * 400
    main = of_headers({"x-claude-code-session-id": token})
    child = of_headers({"x-claude-code-session-id": token, "x-claude-code-agent-id": "a"})
    assert main == Tags(bounded_id(token))
    assert child.parent_job_id == main.job_id
    assert len(child.job_id or "") <= MAX_ID_CHARS
