"""mini-swe-agent's trajectories: one JSON document a run, with usage and times in its messages.

Source: mini-swe-agent 2.4 (`trajectory_format`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentkv import parse_tool_calls

from .text import estimated_tokens, seconds_of, text_of
from .turns import ModelCall, TracedTurn, turns_of


def is_mini_swe_agent(row: Mapping[str, Any]) -> bool:
    """True for a trajectory of mini-swe-agent."""
    return str(row.get("trajectory_format", "")).startswith("mini-swe-agent")


def read_mini_swe_agent(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """Usage and times are in `extra` of each reply and observation."""
    for row in rows:
        calls, seen_tokens = list[ModelCall](), 0
        for message, after in pairwise([*(row.get("messages") or ()), {}]):
            tokens = estimated_tokens(message.get("content"))
            if message.get("role") == "assistant":
                calls.append(_call(message, after, tokens, max(1, seen_tokens)))
            seen_tokens += tokens
        yield from turns_of(str(row.get("instance_id") or name), calls)


def _call(
    message: Mapping[str, Any], after: Mapping[str, Any], text_tokens: int, seen_tokens: int
) -> ModelCall:
    extra = message.get("extra") or {}
    usage = (extra.get("response") or {}).get("usage") or {}
    commands = [str(action.get("command")) for action in extra.get("actions") or ()]
    if not commands:
        called = parse_tool_calls(text_of(message.get("content")))
        commands = [call.command or call.name for call in called]
    call = ModelCall(
        prompt_tokens=usage.get("prompt_tokens") or seen_tokens,
        output_tokens=usage.get("completion_tokens") or text_tokens,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        commands=commands,
        counted="usage" if usage.get("prompt_tokens") else "estimate",
    )
    stamps = [extra.get("timestamp"), (after.get("extra") or {}).get("timestamp")]
    if None not in stamps:
        began_s, ended_s = map(seconds_of, stamps)
        call.tool_s = max(0.0, ended_s - began_s)
    return call
