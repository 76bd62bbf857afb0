"""The fields and headers that travel between client and server, and the values each may have.

The client checks its caller's arguments with it, the server plugin the requests that arrive. It
has their names, types and ranges.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast
from urllib.parse import quote, unquote_to_bytes

from agentkv.errors import TagError

WIRE_VERSION = 1

LARGE_HIT_UNIT_TOKENS = 128
"""Tokens of the largest blocks of models with full attention alone."""
MAX_ID_CHARS = 256
MAX_TURN = 1_000_000
MAX_TOOL_CHARS = 4096
MAX_COMMAND_CHARS = 1024 * 1024
KEPT_COMMAND_CHARS = 16 * 1024
"""Characters of a command that servers read; they cut off the rest."""
MAX_DURATION_S = 31_536_000.0  # a year: anything longer is a broken clock, not a tool
MAX_TOOL_HEADER_CHARS = 1024  # servers and proxies allow 8 KiB or more for all headers together

SESSION_HEADER = "X-Session-ID"
"""vLLM's own header for a session. Every request of a job carries it: routers are sticky by it."""
AFFINITY_HEADER = "X-AgentKV-Affinity"
"""Names the job whose server this one shall share; routers by our recipes read it first."""

TAG_HEADERS: Mapping[str, str] = {
    "job_id": "X-AgentKV-Job",
    "is_last_step": "X-AgentKV-Last-Step",
    "parent_job_id": "X-AgentKV-Parent",
    "turn": "X-AgentKV-Turn",
    "expected_turns": "X-AgentKV-Expected-Turns",
    "last_tool": "X-AgentKV-Last-Tool",
    "last_tool_s": "X-AgentKV-Last-Tool-S",
    "max_ttl_s": "X-AgentKV-Max-TTL-S",
}
OUR_HEADERS = "x-agentkv-"
"""Start of the names of our headers, lower case: who sends one knows agentkv."""
WIRE_FIELD = "agentkv_wire_version"
"""Field of a body whose tags are not in headers as well; who sends it knows agentkv, too."""

_HEADER_FLAGS: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}

CLIENT_FIELD = "agentkv_client"
"""Field of `vllm_xargs` in which the API server names the client of a request to the engine. It
overwrites what a client sends in it."""
_CLIENT_END = "\x1f"

ToolState = Literal["started", "finished"]


class _Fields:
    """A value that travels as fields of a request body."""

    __slots__ = ()

    def as_fields(self) -> dict[str, Any]:
        """Return the fields that are set."""
        names = (field.name for field in fields(cast(Any, self)))
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class Tags(_Fields):
    """The tags of one request; None means that a field was not sent."""

    job_id: str | None = None
    is_last_step: bool | None = None
    parent_job_id: str | None = None
    turn: int | None = None
    expected_turns: int | None = None
    last_tool: str | None = None
    last_tool_s: float | None = None
    max_ttl_s: float | None = None

    def as_headers(self) -> dict[str, str]:
        """The fields that are set as headers, and the job's id as `X-Session-ID`, too.

        Text is percent-encoded where a header cannot hold it; a long `last_tool` is cut.
        """
        headers = {
            TAG_HEADERS[name]: _header_value(name, value)
            for name, value in self.as_fields().items()
        }
        if self.job_id is not None:
            headers[SESSION_HEADER] = headers[TAG_HEADERS["job_id"]]
        return headers


TAG_FIELDS = tuple(field.name for field in fields(Tags))


def routing_headers(job_id: str | None, affinity: str | None = None) -> dict[str, str]:
    """Return the headers by which routers choose a server, for every request of a job; {} of none.

    Its tool events and its release carry them, too, so that they reach the same server.
    """
    names = {SESSION_HEADER: job_id, AFFINITY_HEADER: affinity}
    return {header: _encode(name) for header, name in names.items() if name is not None}


@dataclass(frozen=True, slots=True)
class ToolEvent(_Fields):
    """A tool of a job started or finished; `duration_s` is the client's own measurement."""

    state: ToolState
    tool: str | None = None
    command: str | None = None
    duration_s: float | None = None
    turn: int | None = None
    limit_s: float | None = None
    """Seconds after which the tool comes back at the latest; 0: it runs in the background."""

    def cut(self) -> ToolEvent:
        """The event with its command cut to what servers read."""
        return replace(self, command=self.command and self.command[:KEPT_COMMAND_CHARS])


class JobKey(str):
    """The id by which the engine knows a client's job, since clients may use equal ids.

    Equal to, and hashed as, its text: `own_id`, which the client gave, behind `client`, which is ""
    where requests enter the engine without an API server.
    """

    __slots__ = ("client", "own_id")

    client: str
    own_id: str

    def __new__(cls, client: str, own_id: str) -> JobKey:
        key = super().__new__(cls, f"{client}{_CLIENT_END}{own_id}" if client else own_id)
        key.client, key.own_id = client, own_id
        return key

    @classmethod
    def read(cls, text: str) -> JobKey:
        """Return the key that has this text."""
        if isinstance(text, JobKey):
            return text
        client, end, own_id = text.partition(_CLIENT_END)
        return cls(client, own_id) if end else cls("", text)


def parse_tags(raw: Mapping[str, object], *, flags_as_numbers: bool = False) -> Tags:
    """Read the tags in a mapping of JSON values; other keys are ignored, null means not sent.

    flags_as_numbers: also accept 0 and 1 for `is_last_step`, into which vLLM's `vllm_xargs` turns
        false and true.

    Raises TagError for the first wrong field.
    """
    return Tags(
        job_id=_text(raw, "job_id", MAX_ID_CHARS),
        is_last_step=_flag(raw, "is_last_step", numbers=flags_as_numbers),
        parent_job_id=_text(raw, "parent_job_id", MAX_ID_CHARS),
        turn=_count(raw, "turn"),
        expected_turns=_count(raw, "expected_turns"),
        last_tool=_text(raw, "last_tool", MAX_TOOL_CHARS),
        last_tool_s=_duration(raw, "last_tool_s"),
        max_ttl_s=_duration(raw, "max_ttl_s"),
    )


def read_tags(
    raw: Mapping[str, object], passed_over: list[TagError], *, flags_as_numbers: bool = False
) -> Tags:
    """Read likewise what can be used of what somebody sent who may not know agentkv.

    A wrong field is passed over, and its error added to `passed_over`; too long an id is hashed.
    """
    with suppress(TagError):  # as nearly always
        return parse_tags(raw, flags_as_numbers=flags_as_numbers)
    found: dict[str, Any] = {}
    for name in TAG_FIELDS:
        value = raw.get(name)
        if name in ("job_id", "parent_job_id") and isinstance(value, str):
            value = bounded_id(value)
        try:
            found |= parse_tags({name: value}, flags_as_numbers=flags_as_numbers).as_fields()
        except TagError as error:
            passed_over.append(error)
    return Tags(**found)


def bounded_id(text: str) -> str:
    """The id by which a job is known whose id elsewhere may be of any length, such as a token."""
    if len(text) <= MAX_ID_CHARS:
        return text
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def header_fields(headers: Mapping[str, str]) -> dict[str, object]:
    """Read the tags that our headers set, unchecked; names are in lower case, "" is absent."""
    given = {tag: headers.get(name.lower()) for tag, name in TAG_HEADERS.items()}
    return {tag: _from_header(tag, text) for tag, text in given.items() if text}


def parse_header_tags(headers: Mapping[str, str]) -> Tags:
    """Read and check them. Raises TagError for the first wrong value; it names the header."""
    try:
        return parse_tags(header_fields(headers))
    except TagError as error:
        raise TagError(TAG_HEADERS[error.field], error.value, error.allowed) from None


# What a header cannot hold as it is: "%" itself, anything but printable ASCII, and a blank at
# either end, which HTTP strips.
_ENCODED = re.compile(r"[^\x20-\x7e]|%|^ | \Z")


def _header_value(tag: str, value: str | int | float | bool) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    encoded = _encode(value)
    if tag == "last_tool" and len(encoded) > MAX_TOOL_HEADER_CHARS:
        # whole characters of it, with room to encode a blank that is last now
        start = re.sub(r"%.?\Z", "", encoded[: MAX_TOOL_HEADER_CHARS - 2])
        encoded = _encode(unquote_to_bytes(start).decode(errors="ignore"))
    return encoded


def _encode(text: str) -> str:
    return _ENCODED.sub(lambda found: quote(found[0], safe="", errors="replace"), text)


def _from_header(tag: str, text: str) -> object:
    """Decode one of our own headers; text that should be a number or flag stays as it is."""
    if tag == "is_last_step":
        return _HEADER_FLAGS.get(text.strip().lower(), text)
    if tag in ("turn", "expected_turns", "last_tool_s", "max_ttl_s"):
        with suppress(ValueError, RecursionError):
            number = json.loads(text)
            return number if type(number) in (int, float) else text
        return text
    # Servers read the bytes of a header as Latin-1. What is no UTF-8 becomes a lone surrogate,
    # which `parse_tags` rejects.
    raw = text.encode("latin-1", errors="replace")
    return unquote_to_bytes(raw).decode(errors="surrogateescape")


def parse_tool_event(body: object) -> ToolEvent:
    """Read the event in the JSON body of the tool route; raises TagError for a wrong field."""
    if not isinstance(body, Mapping):
        raise TagError("body", body, 'a JSON object with "state"')
    state = body.get("state")
    if state not in ("started", "finished"):
        raise TagError("state", state, '"started" or "finished"')
    return ToolEvent(
        state=cast(ToolState, state),
        tool=_text(body, "tool", MAX_TOOL_CHARS),
        command=_text(body, "command", MAX_COMMAND_CHARS, min_chars=0),
        duration_s=_duration(body, "duration_s"),
        turn=_count(body, "turn"),
        limit_s=_duration(body, "limit_s"),
    )


_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which JSON can carry but UTF-8, and so the engine, cannot."""


def _text(
    raw: Mapping[str, object], field: str, max_chars: int, *, min_chars: int = 1
) -> str | None:
    value = raw.get(field)
    if value is None:
        return None
    is_text = isinstance(value, str) and min_chars <= len(value) <= max_chars
    if isinstance(value, str) and is_text and not _SURROGATE.search(value):
        return value
    lengths = f"{min_chars} to {max_chars}" if min_chars else f"at most {max_chars}"
    raise TagError(field, value, f"a string of {lengths} Unicode characters")


def _flag(raw: Mapping[str, object], field: str, *, numbers: bool) -> bool | None:
    value = raw.get(field)
    if value is None or isinstance(value, bool):
        return value
    if numbers and isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    raise TagError(field, value, "true or false" + (" (or 1 or 0)" if numbers else ""))


def parse_affinity(value: object) -> str | None:
    """Check a name for `X-AgentKV-Affinity`, which is as a job's id; raises TagError."""
    return _text({"affinity": value}, "affinity", MAX_ID_CHARS)


def parse_turn_count(value: object, field: str) -> int:
    """Check a number of turns; raises TagError, which names `field`, for any other value."""
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
