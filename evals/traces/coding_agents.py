"""Logs of coding agents: Claude Code's sessions, Codex's rollouts, mini-swe-agent's trajectories.

Sources: files of Claude Code 1.0 to 2.1 and of Codex 0.46 to 0.58 as public descriptions of them
say, for there are no official ones; mini-swe-agent 2.4 (`trajectory_format`). Calls without usage
are left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from agentkv import parse_tool_calls
from agentkv.integrations.vllm.watch.changes import Message

from ..requests import messages_of
from .turns import ModelCall, TracedTurn, turns_of

_Row = Mapping[str, Any]
_Said = dict[object, tuple[object, list[Message]]]
"""Messages of a session by the line, with the line that each answers."""
_PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_CODEX_TOOLS = {"function_call", "local_shell_call", "custom_tool_call"}


def read_claude_code(_: str, rows: Sequence[_Row]) -> Iterator[TracedTurn]:
    """Turns of a session and of its sub-agents, which are jobs whose parent it is."""
    threads = defaultdict(list)
    for row in rows:
        if row.get("type") in {"user", "assistant"} and row.get("timestamp"):
            agent = (row.get("agentId") or "sidechain") if row.get("isSidechain") else None
            threads[str(row.get("sessionId")), agent].append(row)
    for (session, agent), lines in threads.items():
        calls = _claude_calls(sorted(lines, key=lambda row: str(row["timestamp"])))
        if agent is None:
            yield from turns_of(session, calls)
        else:
            yield from turns_of(f"{session}/{agent}", calls, session)


def _claude_calls(rows: Sequence[_Row]) -> list[ModelCall]:
    calls: dict[str, ModelCall] = {}
    callers: dict[str, ModelCall] = {}
    """Calls of a model by the ids of the tools that they called."""
    asked_s = None
    said: _Said = {}
    newest: object = None
    for number, row in enumerate(rows):
        before = row.get("parentUuid") if row.get("parentUuid") in said else newest
        message, newest = row.get("message") or {}, row.get("uuid") or number
        is_summary = row.get("isCompactSummary")  # the first line of what follows
        said[newest] = None if is_summary else before, messages_of({"messages": [message]})
        at_s = seconds_of(row["timestamp"])
        if row["type"] == "user":
            for result in _blocks(message, "tool_result"):
                if caller := callers.get(str(result.get("tool_use_id"))):
                    caller.tool_ended(at_s)
            asked_s = at_s
            continue
        usage = message.get("usage") or {}
        prompt_tokens = sum(usage.get(part) or 0 for part in _PROMPT_PARTS)
        if not prompt_tokens:
            continue  # as what the program itself said in the model's place
        key = str(message.get("id") or row.get("requestId") or row.get("uuid"))
        sent_s = at_s if asked_s is None else asked_s
        if key not in calls:
            calls[key] = ModelCall(sent_s=sent_s, messages=_conversation(said, before))
        call = calls[key]
        call.ended_s = at_s
        call.prompt_tokens, call.output_tokens = prompt_tokens, usage.get("output_tokens") or 0
        call.cached_tokens = usage.get("cache_read_input_tokens")
        for tool in _blocks(message, "tool_use"):
            call.commands.append(command_of(tool.get("name"), tool.get("input")))
            callers[str(tool.get("id"))] = call
    return list(calls.values())


def _conversation(said: _Said, line: object) -> list[Message]:
    """The messages up to a line of a session, along the lines that each answers."""
    found: list[list[Message]] = []
    while line in said:
        line, messages = said[line]
        found.append(messages)
    return [message for messages in reversed(found) for message in messages]


def _blocks(message: _Row, kind: str) -> list[_Row]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


def read_codex(name: str, rows: Sequence[_Row]) -> list[TracedTurn]:
    """Turns of a rollout; one that another thread spawned has that as its parent."""
    meta: _Row
    meta = next((row["payload"] for row in rows if row.get("type") == "session_meta"), {})
    instructions = (meta.get("base_instructions") or {}).get("text") or meta.get("instructions")
    calls = _codex_calls(rows, messages_of({"instructions": instructions}))
    return turns_of(str(meta.get("id") or name), calls, _parent_of(meta))


def _codex_calls(rows: Sequence[_Row], said: list[Message]) -> list[ModelCall]:
    """The calls that have usage, behind what was `said` before."""
    calls: list[ModelCall] = []
    callers: dict[str, ModelCall] = {}
    asked_s, totals, call = 0.0, None, None
    start = [*said]
    for row in rows:
        payload, at_s = row["payload"], seconds_of(row["timestamp"])
        kind = payload.get("type")
        if str(kind).endswith("_call_output"):
            if caller := callers.get(str(payload.get("call_id"))):
                caller.tool_ended(at_s)
            asked_s = at_s
        elif kind == "user_message":
            asked_s = at_s
        elif kind in _CODEX_TOOLS or kind == "reasoning" or payload.get("role") == "assistant":
            call = call or ModelCall(sent_s=min(asked_s or at_s, at_s), messages=[*said])
            call.ended_s = at_s
            if kind in _CODEX_TOOLS:
                call.commands.append(_codex_command(payload))
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
        if row["type"] == "response_item":
            said += messages_of({"messages": [payload]})
        elif row["type"] == "compacted":
            summary = [{"role": "user", "content": payload.get("message")}]
            kept = payload.get("replacement_history") or summary
            said = [*start, *messages_of({"messages": kept})]
    return calls


def _codex_command(payload: _Row) -> str:
    if payload["type"] == "custom_tool_call":
        return str(payload.get("name"))
    arguments = payload.get("action") or payload.get("arguments")
    return command_of(payload.get("name") or "shell", arguments)


def _parent_of(meta: _Row) -> str | None:
    """The thread that spawned this one, where the rollout names it."""
    found: Any = meta.get("source")
    for name in ("subagent", "thread_spawn", "parent_thread_id"):
        found = found.get(name) if isinstance(found, dict) else None
    return None if found is None else str(found)


def read_mini_swe_agent(name: str, rows: Sequence[_Row]) -> Iterator[TracedTurn]:
    """Usage and times are in `extra` of each reply and observation."""
    for row in rows:
        messages = pairwise([*(row.get("messages") or ()), {}])
        calls = [
            _mini_call(reply, after, usage)
            for reply, after in messages
            if (usage := ((reply.get("extra") or {}).get("response") or {}).get("usage"))
        ]
        yield from turns_of(str(row.get("instance_id") or name), calls)


def _mini_call(reply: _Row, after: _Row, usage: _Row) -> ModelCall:
    extra = reply["extra"]
    commands = [str(action.get("command")) for action in extra.get("actions") or ()]
    stamps = [extra.get("timestamp"), (after.get("extra") or {}).get("timestamp")]
    return ModelCall(
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        commands=commands,
        tool_s=None if None in stamps else max(0.0, stamps[1] - stamps[0]),
    )


def seconds_of(stamp: object) -> float:
    """Unix seconds of an ISO 8601 stamp, in UTC where it has no zone. Raises ValueError."""
    moment = datetime.fromisoformat(str(stamp))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def command_of(name: object, arguments: Any) -> str:
    """The bash command of a tool call, else the tool's name."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": str(name or "tool"), "arguments": text}
    calls = parse_tool_calls(
        {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
    )
    return next((call.command for call in calls if call.command), None) or function["name"]
