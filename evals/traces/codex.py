"""Codex's rollouts: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

A `token_count` event closes a call of the model; its usage counts the whole prompt, cached tokens
included. Source: rollouts of Codex 0.46 to 0.58 as public descriptions of them say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .text import command_of, seconds_of
from .turns import ModelCall, TracedTurn, turns_of

_KINDS = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_TOOL_CALLS = {"function_call", "local_shell_call", "custom_tool_call"}


def is_codex(row: Mapping[str, Any]) -> bool:
    """True for a line of a rollout."""
    return row.get("type") in _KINDS and isinstance(row.get("payload"), dict)


def read_codex(name: str, rows: Sequence[Mapping[str, Any]]) -> list[TracedTurn]:
    """Turns of a rollout; one that another thread spawned has that as its parent."""
    meta: Mapping[str, Any]
    meta = next((row["payload"] for row in rows if row.get("type") == "session_meta"), {})
    return turns_of(str(meta.get("id") or name), _calls(rows), _parent_of(meta))


def _calls(rows: Sequence[Mapping[str, Any]]) -> list[ModelCall]:
    """The calls that have usage."""
    calls: list[ModelCall] = []
    callers: dict[str, ModelCall] = {}
    asked_s, totals, call = 0.0, None, None
    for row in rows:
        payload, at_s = row["payload"], seconds_of(row.get("timestamp", 0.0))
        kind = payload.get("type")
        if str(kind).endswith("_call_output"):
            if caller := callers.get(str(payload.get("call_id"))):
                caller.tool_ended(at_s)
            asked_s = at_s
        elif kind == "user_message":
            asked_s = at_s
        elif kind in _TOOL_CALLS or kind == "reasoning" or payload.get("role") == "assistant":
            call = call or ModelCall(min(asked_s or at_s, at_s))
            call.ended_s = at_s
            if kind in _TOOL_CALLS:
                call.commands.append(_command(payload))
                callers[str(payload.get("call_id"))] = call
        elif kind == "token_count" and call is not None and (info := payload.get("info")):
            usage = info.get("last_token_usage") or {}
            if usage.get("input_tokens") and info.get("total_token_usage") != totals:
                totals = info.get("total_token_usage")
                call.prompt_tokens = usage["input_tokens"]
                call.output_tokens = usage.get("output_tokens") or 0
                call.cached_tokens = usage.get("cached_input_tokens")
                calls.append(call)
                call = None
    return calls


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
    found: Any = meta.get("source")
    for name in ("subagent", "thread_spawn", "parent_thread_id"):
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None else str(found)
