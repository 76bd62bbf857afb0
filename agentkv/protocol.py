"""The fields that travel between client and server, and what each may hold.

Both sides use this module: the client to check what a caller hands in, the server plugin to check
what arrives. It knows names, types and ranges; it knows nothing about HTTP, sessions or vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, cast

from agentkv.errors import TagError

WIRE_VERSION = 1

TAG_FIELDS = (
    "job_id",
    "is_last_step",
    "parent_job_id",
    "turn",
    "expected_turns",
    "last_tool",
    "last_tool_s",
)

MAX_ID_CHARS = 256
MAX_TURN = 1_000_000
MAX_TOOL_CHARS = 4096
MAX_COMMAND_CHARS = 1024 * 1024
MAX_DURATION_S = 31_536_000.0  # a year: longer is a clock gone wrong, not a tool

# Session headers of coding agents, lower case, and the tag each one stands for. Where a request
# carries several for one tag, the first in this order counts.
SESSION_HEADERS: Mapping[str, str] = {
    "x-session-id": "job_id",  # vLLM's own, also sent by OpenCode
    "x-claude-code-session-id": "job_id",
    "session-id": "job_id",  # Codex
    "x-dynamo-session-id": "job_id",
    "x-parent-session-id": "parent_job_id",
    "x-dynamo-parent-session-id": "parent_job_id",
    "x-dynamo-session-final": "is_last_step",
}

_HEADER_FLAGS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}

ToolState = Literal["started", "finished"]


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one request; None is a field that was not sent."""

    job_id: str | None = None
    is_last_step: bool | None = None
    parent_job_id: str | None = None
    turn: int | None = None
    expected_turns: int | None = None
    last_tool: str | None = None
    last_tool_s: float | None = None

    def as_fields(self) -> dict[str, str | int | float | bool]:
        """The fields that were sent, as they go into a request body."""
        values = ((name, getattr(self, name)) for name in TAG_FIELDS)
        return {name: value for name, value in values if value is not None}


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """A tool of a job started or finished; `duration_s` is the client's own measurement."""

    state: ToolState
    tool: str | None = None
    command: str | None = None
    duration_s: float | None = None
    turn: int | None = None

    def as_fields(self) -> dict[str, str | int | float]:
        """The fields that were given, as they go into the body of the tool route."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in values if value is not None}


def parse_tags(raw: Mapping[str, object], *, flags_as_numbers: bool = False) -> Tags:
    """The tags in a mapping of JSON values; keys that are no tags are ignored, null is absent.

    flags_as_numbers also takes 0 and 1 for `is_last_step`, which is what vLLM's `vllm_xargs` makes
    of false and true. Raises TagError for the first field that is wrong.
    """
    return Tags(
        job_id=_text(raw, "job_id", MAX_ID_CHARS),
        is_last_step=_flag(raw, "is_last_step", numbers=flags_as_numbers),
        parent_job_id=_text(raw, "parent_job_id", MAX_ID_CHARS),
        turn=_count(raw, "turn"),
        expected_turns=_count(raw, "expected_turns"),
        last_tool=_text(raw, "last_tool", MAX_TOOL_CHARS),
        last_tool_s=_duration(raw, "last_tool_s"),
    )


def fields_from_headers(headers: Mapping[str, str]) -> dict[str, object]:
    """The tags that the session headers of a request stand for, not yet checked.

    `headers` has lower-case names. A flag that is neither true nor false is handed on as text, so
    that `parse_tags` rejects it by name.
    """
    found: dict[str, object] = {}
    for name, tag in SESSION_HEADERS.items():
        value = headers.get(name)
        if value is None or tag in found:
            continue
        is_flag = tag == "is_last_step"
        found[tag] = _HEADER_FLAGS.get(value.strip().lower(), value) if is_flag else value
    return found


def parse_tool_event(body: object) -> ToolEvent:
    """The event in the JSON body of the tool route; raises TagError for what is wrong in it.

    `duration_s` may be missing from a finished event: the server then knows only its own times.
    """
    if not isinstance(body, Mapping):
        raise TagError("body", body, 'a JSON object with "state"')
    state = body.get("state")
    if state not in ("started", "finished"):
        raise TagError("state", state, '"started" or "finished"')
    return ToolEvent(
        state=cast(ToolState, state),
        tool=_text(body, "tool", MAX_TOOL_CHARS),
        command=_command(body, "command"),
        duration_s=_duration(body, "duration_s"),
        turn=_count(body, "turn"),
    )


def _text(raw: Mapping[str, object], field: str, max_chars: int) -> str | None:
    value = raw.get(field)
    if value is None:
        return None
    if isinstance(value, str) and 1 <= len(value) <= max_chars and _is_encodable(value):
        return value
    raise TagError(field, value, f"a string of 1 to {max_chars} Unicode characters")


def _command(raw: Mapping[str, object], field: str) -> str | None:
    value = raw.get(field)
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= MAX_COMMAND_CHARS and _is_encodable(value):
        return value
    raise TagError(field, value, f"a string of at most {MAX_COMMAND_CHARS} Unicode characters")


def _flag(raw: Mapping[str, object], field: str, *, numbers: bool) -> bool | None:
    value = raw.get(field)
    if value is None or isinstance(value, bool):
        return value
    if numbers and isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise TagError(field, value, "true or false" + (" (or 1 or 0)" if numbers else ""))


def parse_turn_count(value: object, field: str) -> int:
    """A number of turns; raises TagError, which names `field`, for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TURN:
        return value
    raise TagError(field, value, f"a whole number from 1 to {MAX_TURN}")


def _count(raw: Mapping[str, object], field: str) -> int | None:
    value = raw.get(field)
    return None if value is None else parse_turn_count(value, field)


def _duration(raw: Mapping[str, object], field: str) -> float | None:
    value = raw.get(field)
    if value is None:
        return None
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and 0.0 <= value <= MAX_DURATION_S:
        return float(value)
    raise TagError(field, value, f"a number of seconds from 0 to {MAX_DURATION_S:.0f}")


def _is_encodable(text: str) -> bool:
    """False for lone surrogates, which JSON can carry but UTF-8, and so the engine, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
