"""Trajectories of agents: mini-swe-agent's, SWE-agent's, OpenHands' events, and ATIF.

Each is one JSON document a run. Sources: mini-swe-agent 2.4 (`trajectory_format`), SWE-agent's
`.traj`, OpenHands' exported events, the Agent Trajectory Interchange Format 1.4 (harbor).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .text import TokenCounter, command_in, command_of, seconds_of, text_of
from .turns import TracedTurn, with_kept


def is_mini_swe_agent(row: Mapping[str, Any]) -> bool:
    """True for a trajectory of mini-swe-agent."""
    return str(row.get("trajectory_format", "")).startswith("mini-swe-agent")


def read_mini_swe_agent(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """Usage and times are in `extra` of each reply and observation."""
    for row in rows:
        job_id = str(row.get("instance_id") or name)
        seen_tokens, turns = 0, list[TracedTurn]()
        messages = row.get("messages") or []
        for message, after in zip(messages, [*messages[1:], {}], strict=True):
            tokens = count(text_of(message.get("content")))
            if message.get("role") != "assistant":
                seen_tokens += tokens
                continue
            extra = message.get("extra") or {}
            usage = (extra.get("response") or {}).get("usage") or {}
            actions = [str(action.get("command")) for action in extra.get("actions") or ()]
            command = "\n".join(actions) or command_in(text_of(message.get("content")))
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
                    counted="usage" if usage.get("prompt_tokens") else count.kind,
                )
            )
            seen_tokens += tokens
        yield from turns


def _stamp(extra: Mapping[str, Any]) -> float | None:
    stamp = extra.get("timestamp")
    return None if stamp is None else seconds_of(stamp)


def is_swe_agent(row: Mapping[str, Any]) -> bool:
    """True for a trajectory of SWE-agent."""
    steps = row.get("trajectory")
    return isinstance(steps, list) and all("action" in step for step in steps[:1])


def read_swe_agent(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """Tokens are counted from the text: a step has its tool's time, and no usage."""
    for row in rows:
        prompt_tokens = count(_before_first(row))
        for number, step in enumerate(row["trajectory"]):
            output_tokens = max(1, count(str(step.get("response") or step.get("thought") or "")))
            yield TracedTurn(
                job_id=str(row.get("instance_id") or name),
                turn=number,
                prompt_tokens=max(1, prompt_tokens),
                output_tokens=output_tokens,
                command=str(step.get("action") or "").strip() or None,
                tool_s=step.get("execution_time"),
                counted=count.kind,
            )
            prompt_tokens += output_tokens + count(str(step.get("observation") or ""))


def _before_first(row: Mapping[str, Any]) -> str:
    """Text of the messages before the first reply."""
    history = row.get("history") or row["trajectory"][0].get("query") or []
    texts = []
    for message in history:
        if message.get("role") == "assistant":
            break
        texts.append(text_of(message.get("content")))
    return "".join(texts)


def is_openhands(row: Mapping[str, Any]) -> bool:
    """True for an event of OpenHands."""
    is_old = ("action" in row or "observation" in row) and "source" in row and "timestamp" in row
    return is_old or str(row.get("kind", "")).endswith("Event")


def read_openhands(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """Events of one reply of the model have its id in common; an observation names its cause."""
    calls: dict[str, list[Mapping[str, Any]]] = {}
    asked: dict[str, tuple[int, float]] = {}
    ends_s: dict[str, float] = {}
    seen_tokens, asked_s = 0, None
    for row in rows:
        at_s = seconds_of(row.get("timestamp", 0.0))
        reply = _reply_id(row)
        if reply is not None:
            asked.setdefault(reply, (seen_tokens, at_s if asked_s is None else asked_s))
            calls.setdefault(reply, []).append(row)
        else:
            if (cause := row.get("cause", row.get("action_id"))) is not None:
                ends_s[str(cause)] = at_s
            asked_s = at_s
        seen_tokens += count(text_of(row))
    turns, cached = [], []
    for number, (reply, events) in enumerate(calls.items()):
        usage = _usage_of(events[0])
        ended_s = seconds_of(events[0].get("timestamp", 0.0))
        tools_s = [ends_s[key] for event in events if (key := str(event.get("id"))) in ends_s]
        commands = [command for event in events if (command := _openhands_command(event))]
        turns.append(
            TracedTurn(
                job_id=name,
                turn=number,
                prompt_tokens=usage.get("prompt_tokens") or max(1, asked[reply][0]),
                output_tokens=usage.get("completion_tokens") or max(1, count(text_of(events))),
                command="\n".join(commands) or None,
                tool_s=max(0.0, max(tools_s) - ended_s) if tools_s and commands else None,
                sent_s=min(asked[reply][1], ended_s),
                ended_s=ended_s,
                counted="usage" if usage.get("prompt_tokens") else count.kind,
            )
        )
        cached.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens"))
    yield from with_kept(turns, cached)


def _usage_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    response = (event.get("tool_call_metadata") or {}).get("model_response") or {}
    return response.get("usage") or {}


def _reply_id(row: Mapping[str, Any]) -> str | None:
    """The model's reply that an event came from; None for what a person or a tool says."""
    if (
        row.get("source") != "agent"
        or "observation" in row
        or "ObservationEvent" in str(row.get("kind"))
    ):
        return None
    metadata = row.get("tool_call_metadata") or {}
    reply = row.get("llm_response_id") or (metadata.get("model_response") or {}).get("id")
    if reply is None and (
        row.get("action") in {"message", "finish"} or row.get("kind") == "MessageEvent"
    ):
        reply = f"event {row.get('id')}"
    return None if reply is None else str(reply)


def _openhands_command(event: Mapping[str, Any]) -> str | None:
    """The command of an action, else its tool's name; None for a message or an end."""
    if "kind" in event:
        call = event.get("tool_call") or {}
        function = call.get("function") or call
        name = event.get("tool_name") or function.get("name")
        return command_of(name, function.get("arguments")) if name and name != "finish" else None
    if event.get("action") in {"message", "finish", "think", "recall"}:
        return None
    arguments = event.get("args") or {}
    return str(arguments.get("command") or event.get("action"))


def is_atif(row: Mapping[str, Any]) -> bool:
    """True for a document of the Agent Trajectory Interchange Format."""
    return str(row.get("schema_version", "")).startswith("ATIF") and isinstance(
        row.get("steps"), list
    )


def read_atif(
    name: str, rows: Sequence[Mapping[str, Any]], count: TokenCounter
) -> Iterator[TracedTurn]:
    """A step's stamp is the time of its reply: what follows is tool and next call in one.

    The format has no times of tools, so `tool_s` is null.
    """
    for row in rows:
        turns, cached, seen_tokens = list[TracedTurn](), [], 0
        for step in row["steps"]:
            metrics = step.get("metrics") or {}
            tokens = count(text_of(step))
            if step.get("source") == "agent":
                calls = step.get("tool_calls") or ()
                commands = [
                    command_of(call.get("function_name"), call.get("arguments")) for call in calls
                ]
                turns.append(
                    TracedTurn(
                        job_id=str(row.get("session_id") or name),
                        turn=len(turns),
                        prompt_tokens=metrics.get("prompt_tokens") or max(1, seen_tokens),
                        output_tokens=metrics.get("completion_tokens")
                        or max(1, count(str(step.get("message") or ""))),
                        command="\n".join(commands) or None,
                        tool_s=None,
                        counted="usage" if metrics.get("prompt_tokens") else count.kind,
                    )
                )
                cached.append(metrics.get("cached_tokens"))
            seen_tokens += tokens
        yield from with_kept(turns, cached)
