"""mini-swe-agent's trajectories: one JSON document a run, with usage and times in its messages.

Source: mini-swe-agent 2.4 (`trajectory_format`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from agentkv import parse_tool_calls

from .text import estimated_tokens, seconds_of, text_of
from .turns import TracedTurn


def is_mini_swe_agent(row: Mapping[str, Any]) -> bool:
    """True for a trajectory of mini-swe-agent."""
    return str(row.get("trajectory_format", "")).startswith("mini-swe-agent")


def read_mini_swe_agent(name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[TracedTurn]:
    """Usage and times are in `extra` of each reply and observation."""
    for row in rows:
        job_id = str(row.get("instance_id") or name)
        seen_tokens, turns = 0, list[TracedTurn]()
        for message, after in pairwise([*(row.get("messages") or ()), {}]):
            tokens = estimated_tokens(text_of(message.get("content")))
            if message.get("role") != "assistant":
                seen_tokens += tokens
                continue
            extra = message.get("extra") or {}
            usage = (extra.get("response") or {}).get("usage") or {}
            actions = [str(action.get("command")) for action in extra.get("actions") or ()]
            command = "\n".join(actions) or _command_in(text_of(message.get("content")))
            began_s, ended_s = _stamp(extra), _stamp(after.get("extra") or {})
            is_timed = command and began_s is not None and ended_s is not None
            turns.append(
                TracedTurn(
                    job_id=job_id,
                    turn=len(turns),
                    prompt_tokens=usage.get("prompt_tokens") or max(1, seen_tokens),
                    output_tokens=usage.get("completion_tokens") or tokens,
                    command=command,
                    tool_s=max(0.0, (ended_s or 0.0) - (began_s or 0.0)) if is_timed else None,
                    counted="usage" if usage.get("prompt_tokens") else "estimate",
                )
            )
            seen_tokens += tokens
        yield from turns


def _stamp(extra: Mapping[str, Any]) -> float | None:
    stamp = extra.get("timestamp")
    return None if stamp is None else seconds_of(stamp)


def _command_in(text: str) -> str | None:
    """The command that a reply calls, as the client library reads it; None without one."""
    calls = parse_tool_calls(text)
    return "\n".join(call.command or call.name for call in calls) or None
