"""What a reply says about its tokens, in whichever of the OpenAI shapes it says it.

Works on the SDK's objects and on plain JSON alike; knows nothing about how the reply travelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them; None is a count it did not report."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


def read_usage(reply: object) -> Usage | None:
    """The usage in a chat completion, a completion, a response, or an event that carries one."""
    usage = _member(reply, "usage") or _member(_member(reply, "response"), "usage")
    if usage is None:
        return None
    is_responses_shape = _member(usage, "input_tokens") is not None
    prompt, output = ("input", "output") if is_responses_shape else ("prompt", "completion")
    return Usage(
        prompt_tokens=_count(usage, f"{prompt}_tokens"),
        cached_tokens=_count(_member(usage, f"{prompt}_tokens_details"), "cached_tokens"),
        output_tokens=_count(usage, f"{output}_tokens"),
    )


def read_usage_json(text: bytes) -> Usage | None:
    """The usage in a JSON document; None where the text is no JSON or says nothing of tokens."""
    try:
        return read_usage(json.loads(text))
    except ValueError:
        return None


class UsageScanner:
    """Finds the usage in the bytes of a reply as they pass by: one JSON document, or SSE lines.

    Keeps the unfinished line and the last line that speaks of usage, nothing else; JSON is parsed
    once, at the end.
    """

    def __init__(self) -> None:
        self._unfinished_line: list[bytes] = []
        self._usage_line = b""

    def feed(self, chunk: bytes) -> None:
        """Take in the next bytes of the body."""
        first, *rest = chunk.split(b"\n")
        self._unfinished_line.append(first)
        for start in rest:
            self._keep(b"".join(self._unfinished_line))
            self._unfinished_line = [start]

    def usage(self) -> Usage | None:
        """The usage found so far."""
        self._keep(b"".join(self._unfinished_line))
        return read_usage_json(self._usage_line.removeprefix(b"data:"))

    def _keep(self, line: bytes) -> None:
        if _USAGE_OBJECT.search(line):
            self._usage_line = line


def _member(holder: object, name: str) -> object:
    if isinstance(holder, Mapping):
        return holder.get(name)
    return getattr(holder, name, None)


def _count(holder: object, name: str) -> int | None:
    value = _member(holder, name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
