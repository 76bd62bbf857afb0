"""Reads the token usage of an OpenAI SDK reply, and detects when the reply has arrived.

`tagged_call` uses it to close a turn. The caller's objects are passed on unchanged: a reply that is
still arriving is watched at the HTTP response below it, since every way to read one, sync or async,
httpx or httpx2, ends in its `iter_bytes` and `close`. Knows nothing of jobs or turns.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them; None is a count that it did not report."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None


OnComplete = Callable[[Usage | None, float], None]


def read_usage(reply: object) -> Usage | None:
    """Read the usage of a chat completion, a completion, a response, or an event with one of them.

    Takes the SDK's objects and plain JSON alike.
    """
    usage = _member(reply, "usage") or _member(_member(reply, "response"), "usage")
    if usage is None:
        return None
    is_responses_shape = _member(usage, "input_tokens") is not None
    prompt, output = ("input", "output") if is_responses_shape else ("prompt", "completion")
    details = _member(usage, f"{prompt}_tokens_details")
    return Usage(
        prompt_tokens=_count(usage, f"{prompt}_tokens"),
        cached_tokens=None if details is None else _count(details, "cached_tokens"),
        output_tokens=_count(usage, f"{output}_tokens"),
    )


def read_usage_json(text: bytes) -> Usage | None:
    """Read the usage in a JSON document; None if the text is no JSON or has no usage."""
    try:
        return read_usage(json.loads(text))
    except ValueError:
        return None


def _member(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _count(holder: object, name: str) -> int | None:
    value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class UsageScanner:
    """Finds the usage in the bytes of a reply as they arrive: one JSON document, or SSE lines.

    Keeps only the unfinished line and the last line with a usage object; JSON is parsed once, at
    the end.
    """

    def __init__(self) -> None:
        self._unfinished_line: list[bytes] = []
        self._usage_line = b""

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes of the body."""
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


def when_complete(reply: object, on_complete: OnComplete) -> None:
    """Call `on_complete(usage, when)` once the reply has arrived: now, or when its stream ends.

    A stream that is dropped without being read to its end or closed never completes.
    """
    response = _http_response(reply)
    if response is None:
        on_complete(read_usage(reply), time.monotonic())
    elif response.is_closed:
        scanner = UsageScanner()
        scanner.feed(response.content)
        on_complete(read_usage_json(response.content) or scanner.usage(), time.monotonic())
    else:
        _BodyWatch(response, on_complete)


def _http_response(reply: object) -> Any | None:
    """The HTTP response of a stream or a raw reply; None for a parsed one, which has arrived."""
    if hasattr(type(reply), "model_fields"):  # pydantic looks up a missing attribute slowly
        return None
    for holder in (
        getattr(reply, "http_response", None),
        getattr(reply, "response", None),
        reply,
    ):
        if hasattr(holder, "iter_bytes") and hasattr(holder, "is_closed"):
            return holder
    return None


class _BodyWatch:
    """Replaces four methods of one HTTP response while its body arrives."""

    def __init__(self, response: Any, on_complete: OnComplete) -> None:
        self._scanner = UsageScanner()
        self._on_complete: OnComplete | None = on_complete
        self._last_bytes_at_s: float | None = None
        self._is_reading = False
        self._is_closed = False
        self._iter_bytes = response.iter_bytes
        self._aiter_bytes = response.aiter_bytes
        self._close = response.close
        self._aclose = response.aclose
        response.iter_bytes = self.iter_bytes
        response.aiter_bytes = self.aiter_bytes
        response.close = self.close
        response.aclose = self.aclose

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        self._is_reading = True
        try:
            for chunk in self._iter_bytes(chunk_size):
                self._note(chunk)
                yield chunk
                self._is_reading = True
        finally:
            self._stop_reading()

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        self._is_reading = True
        try:
            async for chunk in self._aiter_bytes(chunk_size):
                self._note(chunk)
                yield chunk
                self._is_reading = True
        finally:
            self._stop_reading()

    def close(self) -> None:
        try:
            self._close()
        finally:
            self._note_closed()

    async def aclose(self) -> None:
        try:
            await self._aclose()
        finally:
            self._note_closed()

    def _note(self, chunk: bytes) -> None:
        self._is_reading = False
        self._last_bytes_at_s = time.monotonic()
        self._scanner.feed(chunk)

    def _stop_reading(self) -> None:
        self._is_reading = False
        if self._is_closed:
            self._complete()

    def _note_closed(self) -> None:
        # httpx closes a response before it hands out the rest of a chunk that it cut up
        self._is_closed = True
        if not self._is_reading:
            self._complete()

    def _complete(self) -> None:
        on_complete, self._on_complete = self._on_complete, None
        if on_complete is not None:
            on_complete(self._scanner.usage(), self._last_bytes_at_s or time.monotonic())
