"""Codex's rollouts: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

A `token_count` event closes a call of the model; its usage counts the whole prompt, cached tokens
included. Source: rollouts of Codex 0.46 to 0.58 as public descriptions of them say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .text import command_of, seconds_of
from .turns import TracedTurn, with_kept

_KINDS = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_TOOL_CALLS = {"function_call", "local_shell_call", "custom_tool_call"}


@dataclass(slots=True)
class _CodexCall:
    """One call of the model; times in seconds."""

    sent_s: float
    ended_s: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    tool_ids: set[str] = field(default_factory=set)


def is_codex(row: Mapping[str, Any]) -> bool:
    """True for a line of a rollout."""
    return row.get("type") in _KINDS and isinstance(row.get("payload"), dict)


def read_codex(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """Turns of a rollout; one that another thread spawned has that as its parent."""
    meta: Mapping[str, Any]
    meta = next((row["payload"] for row in rows if row.get("type") == "session_meta"), {})
    calls, outputs_s = _calls(rows)
    turns = []
    for number, call in enumerate(calls):
        ends_s = [outputs_s[tool_id] for tool_id in call.tool_ids if tool_id in outputs_s]
        turns.append(
            TracedTurn(
                job_id=str(meta.get("id") or name),
                turn=number,
                prompt_tokens=call.usage["input_tokens"],
                output_tokens=call.usage.get("output_tokens") or 0,
                command="\n".join(call.commands) or None,
                tool_s=max(0.0, max(ends_s) - call.ended_s) if ends_s else None,
                parent_job_id=_parent_of(meta),
                sent_s=min(call.sent_s, call.ended_s),
                ended_s=call.ended_s,
            )
        )
    yield from with_kept(turns, [call.usage.get("cached_input_tokens") for call in calls])


def _calls(rows: Sequence[Mapping[str, Any]]) -> tuple[list[_CodexCall], dict[str, float]]:
    """The calls that have usage, and the times at which tools' outputs came."""
    calls, outputs_s = [], {}
    asked_s, totals, call = 0.0, None, None
    for row in rows:
        payload, at_s = row["payload"], seconds_of(row.get("timestamp", 0.0))
        kind = payload.get("type")
        if str(kind).endswith("_call_output"):
            outputs_s[str(payload.get("call_id"))] = asked_s = at_s
        elif kind == "user_message":
            asked_s = at_s
        elif kind in _TOOL_CALLS or kind == "reasoning" or payload.get("role") == "assistant":
            call = call or _CodexCall(asked_s or at_s)
            call.ended_s = at_s
            if kind in _TOOL_CALLS:
                call.commands.append(_command(payload))
                call.tool_ids.add(str(payload.get("call_id")))
        elif kind == "token_count" and call is not None and (info := payload.get("info")):
            usage = info.get("last_token_usage") or {}
            if usage.get("input_tokens") and info.get("total_token_usage") != totals:
                totals = info.get("total_token_usage")
                call.usage = usage
                calls.append(call)
                call = None
    return calls, outputs_s


def _command(payload: Mapping[str, Any]) -> str:
    if payload["type"] == "local_shell_call":
        return command_of("shell", payload.get("action"))
    if payload["type"] == "custom_tool_call":
        return str(payload.get("name"))
    try:
        arguments = json.loads(payload.get("arguments") or "{}")
    except (ValueError, RecursionError):
        arguments = {}
    return command_of(payload.get("name"), arguments)


def _parent_of(meta: Mapping[str, Any]) -> str | None:
    """The thread that spawned this one, where the rollout names it."""
    source = meta.get("source")
    spawn = source.get("subagent", {}) if isinstance(source, dict) else {}
    spawn = spawn.get("thread_spawn", {}) if isinstance(spawn, dict) else {}
    parent = spawn.get("parent_thread_id") if isinstance(spawn, dict) else None
    return None if parent is None else str(parent)
