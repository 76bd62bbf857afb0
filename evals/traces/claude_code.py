"""Claude Code's session files, `~/.claude/projects/*/SESSION.jsonl`; sub-agents' are in folders.

A call's reply stands on several lines with one message id; its tools' results, each with a time
stamp, on the lines behind. Source: files of Claude Code 1.0 to 2.1 as public descriptions of them
say; there is no official one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .text import command_of, estimated_tokens, seconds_of
from .turns import ModelCall, TracedTurn, turns_of

_PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def is_claude_code(row: Mapping[str, Any]) -> bool:
    """True for a line of a session file."""
    return "sessionId" in row and row.get("type") in {"user", "assistant", "system", "summary"}


def read_claude_code(_: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """Turns of a session and of its sub-agents, which are jobs whose parent it is."""
    threads = defaultdict(list)
    for row in rows:
        if row.get("type") in {"user", "assistant"} and row.get("timestamp"):
            agent = (row.get("agentId") or "sidechain") if row.get("isSidechain") else None
            threads[str(row.get("sessionId")), agent].append(row)
    for (session, agent), lines in threads.items():
        calls = _calls(sorted(lines, key=lambda row: str(row["timestamp"])))
        if agent is None:
            yield from turns_of(session, calls)
        else:
            yield from turns_of(f"{session}/{agent}", calls, session)


def _calls(rows: Sequence[Mapping[str, Any]]) -> list[ModelCall]:
    calls: dict[str, ModelCall] = {}
    callers: dict[str, ModelCall] = {}
    """Calls of a model by the ids of the tools that they called."""
    asked_s, seen_tokens = None, 0
    for row in rows:
        at_s, message = seconds_of(row["timestamp"]), row.get("message") or {}
        text_tokens = estimated_tokens(message.get("content"))
        if row["type"] == "user":
            for result in _blocks(message, "tool_result"):
                if caller := callers.get(str(result.get("tool_use_id"))):
                    caller.tool_ended(at_s)
            seen_tokens += text_tokens
            asked_s = at_s
            continue
        if "usage" not in message or message.get("model") == "<synthetic>":
            continue  # what the program itself said in the model's place
        usage = message["usage"]
        key = str(message.get("id") or row.get("requestId") or row.get("uuid"))
        sent_s = at_s if asked_s is None else asked_s
        call = calls.setdefault(key, ModelCall(sent_s, prompt_tokens=max(1, seen_tokens)))
        call.ended_s = at_s
        prompt_tokens = sum(usage.get(part) or 0 for part in _PROMPT_PARTS)
        call.prompt_tokens = prompt_tokens or call.prompt_tokens
        call.counted = "usage" if prompt_tokens else "estimate"
        call.output_tokens = usage.get("output_tokens") or call.output_tokens + text_tokens
        call.cached_tokens = usage.get("cache_read_input_tokens")
        for tool in _blocks(message, "tool_use"):
            call.commands.append(command_of(tool.get("name"), tool.get("input")))
            callers[str(tool.get("id"))] = call
        seen_tokens += text_tokens
    return list(calls.values())


def _blocks(message: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]
