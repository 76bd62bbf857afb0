"""Claude Code's session files, `~/.claude/projects/*/SESSION.jsonl`; sub-agents' are in folders.

A call's reply stands on several lines with one message id; its tools' results, each with a time
stamp, on the lines behind. Source: files of Claude Code 1.0 to 2.1 as public descriptions of them
say; there is no official one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .text import command_of, estimated_tokens, seconds_of, text_of
from .turns import TracedTurn, with_kept


@dataclass(slots=True)
class _Call:
    """One call of the model; times in seconds."""

    sent_s: float
    ended_s: float
    usage: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    commands: list[str] = field(default_factory=list)
    tool_ids: set[str] = field(default_factory=set)
    tools_end_s: float = 0.0
    prompt_text_tokens: int = 0

    @property
    def cached_tokens(self) -> int | None:
        return self.usage.get("cache_read_input_tokens")


def is_claude_code(row: Mapping[str, Any]) -> bool:
    """True for a line of a session file."""
    return "sessionId" in row and row.get("type") in {"user", "assistant", "system", "summary"}


def read_claude_code(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """Turns of a session and of its sub-agents, which are jobs whose parent it is."""
    threads = defaultdict(list)
    for row in rows:
        if row.get("type") in {"user", "assistant"} and row.get("timestamp"):
            threads[_thread_of(row)].append(row)
    for (session, agent), lines in threads.items():
        job_id, parent = (session, None) if agent is None else (f"{session}/{agent}", session)
        calls = _calls(lines)
        turns = [_turn(job_id, parent, number, call) for number, call in enumerate(calls)]
        yield from with_kept(turns, [call.cached_tokens for call in calls])


def _thread_of(row: Mapping[str, Any]) -> tuple[str, str | None]:
    """The session, and the sub-agent's id if it is one's line."""
    agent = row.get("agentId") if row.get("isSidechain") else None
    is_old_sidechain = bool(row.get("isSidechain")) and agent is None
    return str(row.get("sessionId")), "sidechain" if is_old_sidechain else agent


def _calls(rows: Sequence[Mapping[str, Any]]) -> list[_Call]:
    calls: dict[str, _Call] = {}
    asked_s, seen_tokens = None, 0
    for row in sorted(rows, key=lambda row: str(row["timestamp"])):
        at_s, message = seconds_of(row["timestamp"]), row.get("message") or {}
        if row["type"] == "user":
            for result in _blocks(message, "tool_result"):
                for call in calls.values():
                    if result.get("tool_use_id") in call.tool_ids:
                        call.tools_end_s = max(call.tools_end_s, at_s)
            seen_tokens += estimated_tokens(text_of(message.get("content")))
            asked_s = at_s
            continue
        if "usage" not in message or message.get("model") == "<synthetic>":
            continue  # what the program itself said in the model's place
        key = str(message.get("id") or row.get("requestId") or row.get("uuid"))
        call = calls.setdefault(key, _Call(at_s if asked_s is None else asked_s, at_s))
        call.prompt_text_tokens = call.prompt_text_tokens or max(1, seen_tokens)
        call.ended_s, call.usage = at_s, message["usage"]
        call.text += text_of(message.get("content"))
        for tool in _blocks(message, "tool_use"):
            call.commands.append(command_of(tool.get("name"), tool.get("input")))
            call.tool_ids.add(str(tool.get("id")))
        seen_tokens += estimated_tokens(text_of(message.get("content")))
    return list(calls.values())


def _blocks(message: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict) and block.get("type") == kind]


def _turn(job_id: str, parent: str | None, number: int, call: _Call) -> TracedTurn:
    usage = call.usage
    parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    prompt_tokens = sum(usage.get(part) or 0 for part in parts)
    ran = bool(call.commands) and call.tools_end_s > 0.0
    return TracedTurn(
        job_id=job_id,
        turn=number,
        prompt_tokens=prompt_tokens or call.prompt_text_tokens,
        output_tokens=usage.get("output_tokens") or estimated_tokens(call.text),
        command="\n".join(call.commands) or None,
        tool_s=max(0.0, call.tools_end_s - call.ended_s) if ran else None,
        parent_job_id=parent,
        sent_s=call.sent_s,
        ended_s=max(call.ended_s, call.sent_s),
        counted="usage" if prompt_tokens else "estimate",
    )
