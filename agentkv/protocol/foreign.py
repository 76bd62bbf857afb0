"""What requests of other software say about their job: one table of body fields and headers.

The server reads by it, and docs/reference/wire.md shows it. Their senders may never have heard of
agentkv: nothing raises, what cannot be used is passed over, and too long an id is hashed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from agentkv.protocol import TAG_HEADERS, Tags, read_tags

CONTEXT_FIELD = "agentic_context"
MAX_CONTEXT_CHARS = 16 * 1024  # of an object that is sent as JSON text

_TABLE = """
vllm-router, AgentInfer | agentic_context | program_id,session_id=job_id
    parent_program_id,parent_id=parent_job_id step_id=turn expected_resume=resumes
    kv_retention_ttl_seconds=max_ttl_s
AgentInfer, vLLM's RFC 52113 | agent_hint | session_id=job_id parent_session_id=parent_job_id
    expected_resume=resumes cache_control.ttl=max_ttl_s
uni-agent (verl) | kv_transfer_params.agent_hint | trajectory_id=job_id
Dynamo | kv_transfer_params.kv_hint | session_id=job_id parent_session_id=parent_job_id
Dynamo, NeMo Agent Toolkit | nvext | agent_context.trajectory_id,agent_context.session_id=job_id
    agent_context.parent_trajectory_id=parent_job_id
    agent_hints.total_requests=expected_turns cache_control.ttl=max_ttl_s
vLLM | body | session_id,conversation_id=job_id
anything; OpenCode, Kilo Code | headers | x-parent-session-id=parent_job_id
    x-session-id,x-opencode-session,x-grok-conv-id=job_id
Claude Code | headers | x-claude-code-session-id=job_id x-claude-code-agent-id=agent
    x-claude-code-parent-agent-id=parent_agent
Claude Code | metadata | user_id.session_id=job_id
Codex | headers | thread-id=job_id x-codex-parent-thread-id=parent_job_id
    session-id,session_id=run x-codex-turn-metadata=compaction
Dynamo | headers | x-dynamo-session-id=job_id x-dynamo-parent-session-id=parent_job_id
    x-dynamo-session-final=is_last_step
DeepSeek Harness | headers | x-deepseek-harness-session-id=job_id
    x-deepseek-harness-parent-session-id=parent_job_id x-deepseek-harness-compact=compaction
vllm-router | session_params | session_id=job_id
Codex behind a proxy | client_metadata | thread_id=job_id session_id=run
    x-codex-parent-thread-id=parent_job_id
OpenHands, older Codex | body | prompt_cache_key=cache_key
Amp, LiteLLM, Hermes and others | headers | x-amp-thread-id,x-litellm-session-id=job_id
    x-conversation-id,x-agent-session-id=job_id x-agent-hint=agent_hint
anything; some name a process | headers | x-session-affinity,x-affinity=job_id
"""
"""By falling precedence: who sends it, where, and `path,path=reading` for each tag, which the first
usable one sets. Besides tags there are readings that say so in wire.md. Ids of one request, of a
trace, of a user, or of a prefix that many runs share name no job."""


class Source(NamedTuple):
    """One format: fields, as (path, reading), of an object in the body, `extra_body` or
    `vllm_xargs`, which may be JSON text; of these themselves ("body"), or "headers"."""

    sent_by: str
    place: str
    fields: list[tuple[str, str]]

    @property
    def path(self) -> str:
        """What stands before the path of a field."""
        return "" if self.place in ("body", "headers") else f"{self.place}."

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The tags in a body, or in headers."""
        found: dict[str, Any] = {}
        holder = _object(_at(body, self.place)) if self.path else body
        for path, reading in self.fields if holder else ():
            given = _at(holder or {}, path) if self.path else body.get(path)
            tag, value = (reading, None) if given is None else _usable(reading, given, body)
            if value is not None:
                found.setdefault(tag, value)
        return read_tags(_composed(found), []).as_fields() if found else {}


def _rows() -> list[Source]:
    sources = []
    for row in re.split(r"\n(?=\S)", _TABLE.strip()):
        sent_by, place, fields = row.split(" | ")
        pairs = [field.split("=") for field in fields.split()]
        by_path = [(path, reading) for paths, reading in pairs for path in paths.split(",")]
        sources.append(Source(sent_by, place, by_path))
    return sources


SOURCES = _rows()
_BY_PLACE = [(source.place, source.path + path) for source in SOURCES for path, _ in source.fields]
BODY_KEYS = {path.partition(".")[0] for place, path in _BY_PLACE if place != "headers"}
"""The members of a body that can set a tag."""
READ_HEADERS = {path for place, path in _BY_PLACE if place == "headers"}
READ_HEADERS |= {name.lower() for name in TAG_HEADERS.values()}
"""All headers that can set a tag, lower case."""


def add_foreign(
    known: Tags, places: Sequence[Mapping[str, Any]], headers: Mapping[str, str]
) -> Tags:
    """Add to our own tags of a request, field by field, what the other formats say.

    A format that names another job than those before it says nothing about this one.
    """
    found: dict[str, Any] = dict(known.as_fields())
    places = [place for place in places if not BODY_KEYS.isdisjoint(place)]
    for source in SOURCES:
        for place in (headers,) if source.place == "headers" else places:
            tags = source.read(place)
            if found.get("job_id") in (None, tags.get("job_id")) or "job_id" not in tags:
                found = {**tags, **found}
    return Tags(**found)


def _at(body: Mapping[str, Any], path: str) -> object:
    """The value at a path of names."""
    value: object = body
    for name in path.split("."):
        value = (_object(value) or {}).get(name)
    return value


def _object(value: object) -> Mapping[str, Any] | None:
    """An object, which may be sent as JSON text; None for anything else."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= MAX_CONTEXT_CHARS:
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    return value if isinstance(value, Mapping) else None


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_TTL = re.compile(r"([0-9]{1,8})([smh]?)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _usable(reading: str, value: object, body: Mapping[str, Any]) -> tuple[str, object]:
    """The tag that a value sets, and to what; None if it sets none."""
    text = value if isinstance(value, str) else ""
    is_true = text.strip().lower() in ("1", "true")
    match reading:
        case "resumes":
            return "is_last_step", True if value is False else None
        case "compaction":
            is_marked = is_true or (_object(text) or {}).get("request_kind") == "compaction"
            return "max_ttl_s", 0.0 if is_marked else None
        case "is_last_step":
            return reading, is_true or None
        case "max_ttl_s":
            ttl = _TTL.fullmatch(text)
            return reading, value if ttl is None else int(ttl[1]) * _SECONDS[ttl[2]]
        case "turn" | "expected_turns":
            return reading, int(text) if re.fullmatch("[0-9]{1,7}", text) else value
        case "agent_hint":
            hint: Mapping[str, Any] = {}
            with suppress(ValueError):  # it is no base64, or no text
                text = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
                hint = _object(text) or {}
            return "job_id", hint.get("session") or hint.get("session_id")
        case "cache_key":  # as OpenHands sends it; others give unrelated requests one key
            is_key = _UUID.fullmatch(text) and body.get("tools") and "client_metadata" not in body
            return "job_id", text if is_key else None
        case _:
            return reading, text or None


def _composed(found: dict[str, Any]) -> dict[str, Any]:
    """The tags, with the ids of sessions, runs and sub-agents put together."""
    agent, parent = found.pop("agent", None), found.pop("parent_agent", None)
    job_id, run = found.get("job_id"), found.pop("run", None)
    if job_id is None and run is not None:
        found["job_id"] = run
    elif run not in (None, job_id):
        found.setdefault("parent_job_id", run)
    elif job_id is not None and agent is not None:
        found["job_id"] = f"{job_id}/{agent}"
        found.setdefault("parent_job_id", f"{job_id}/{parent}" if parent else job_id)
    return found
