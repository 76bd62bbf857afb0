"""Reads the token usage of a reply, and detects when the reply has arrived.

`tagged_call` uses it to close a turn. The caller's objects are passed on: a reply that is still
arriving is watched at the HTTP response, whose readers are replaced until its end. Every way to
read one of httpx or httpx2, sync or async, ends in `iter_bytes` and `close`, every way to read one
of requests in `iter_content`. Knows nothing of jobs or turns.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

_USAGE_OBJECT = re.compile(rb'"usage"\s*:\s*\{')


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reported them; None is a count that it did not report."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    is_aborted: bool = False
    """The engine gave the prompt up, as for new weights: the same turn comes again."""

    def counts(self) -> dict[str, int | None]:
        """Return the token counts by their names."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
        }


OnComplete = Callable[[Usage | None, float], None]


def read_usage(reply: object) -> Usage | None:
    """Read the usage of a chat completion, completion, response, message, or an event with one.

    Takes the objects of the SDKs and plain JSON alike.
    """
    usage = (
        _member(reply, "usage")
        or _member(_member(reply, "response"), "usage")
        or _member(_member(reply, "message"), "usage")
    )
    if usage is None:
        return None
    prompt_tokens = _count(usage, "prompt_tokens")
    details = _member(usage, "prompt_tokens_details") or _member(usage, "input_tokens_details")
    cached_tokens = _count(details, "cached_tokens")
    if prompt_tokens is None:
        prompt_tokens = _count(usage, "input_tokens")
        if details is None:  # a message's input tokens are those that no cache had
            cached_tokens = _count(usage, "cache_read_input_tokens")
            if prompt_tokens is not None:
                prompt_tokens += cached_tokens or 0
                prompt_tokens += _count(usage, "cache_creation_input_tokens") or 0
    output_tokens = _count(usage, "completion_tokens")
    if output_tokens is None:
        output_tokens = _count(usage, "output_tokens")
    return Usage(prompt_tokens, cached_tokens, output_tokens, _is_aborted(reply))


def _is_aborted(reply: object) -> bool:
    choices = _member(reply, "choices")
    return isinstance(choices, list) and any(
        _member(choice, "finish_reason") == "abort" for choice in choices
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

    Keeps only the unfinished line and the first and last line with a usage object, since a message
    begins with its input tokens and ends with its output tokens; JSON is parsed at the end.
    """

    def __init__(self) -> None:
        self._unfinished_line: list[bytes] = []
        self._first_line = self._last_line = b""

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
        last = read_usage_json(self._last_line.removeprefix(b"data:"))
        if last is None or self._first_line is self._last_line:
            return last
        first = read_usage_json(self._first_line.removeprefix(b"data:")) or Usage()
        counts = zip(astuple(last), astuple(first), strict=True)
        return Usage(*(before if count is None else count for count, before in counts))

    def _keep(self, line: bytes) -> None:
        if _USAGE_OBJECT.search(line):
            self._first_line = self._first_line or line
            self._last_line = line


def when_complete(reply: object, on_complete: OnComplete) -> None:
    """Call `on_complete(usage, when)` once the reply has arrived: now, or when its stream ends.

    Takes what an SDK returns. A stream ends when it was read, closed or dropped by its reader; one
    that nobody reads or closes never completes.
    """
    response = _httpx_response(reply)
    if response is None:
        on_complete(read_usage(reply), time.monotonic())
    else:
        when_httpx_complete(response, on_complete)


def when_httpx_complete(response: Any, on_complete: OnComplete) -> None:
    """The same for a response of httpx."""
    if response.is_closed:
        on_complete(_usage_in(response.content), time.monotonic())
    else:
        _watch_httpx(response, _BodyWatch(response, on_complete))


def when_requests_complete(response: Any, on_complete: OnComplete, *, is_stream: bool) -> None:
    """The same for a response of requests."""
    if not is_stream:
        on_complete(_usage_in(response.content or b""), time.monotonic())
        return
    watch = _BodyWatch(response, on_complete)
    iter_content, close = response.iter_content, response.close

    def watched_content(*args: Any, **kwargs: Any) -> Iterator[Any]:
        return watch.chunks(iter_content(*args, **kwargs))

    watch.replace(iter_content=watched_content, close=lambda: watch.closing(close))


def when_aiohttp_complete(response: Any, on_complete: OnComplete) -> None:
    """The same for a response of aiohttp, which hands out its body through `content`."""
    watch = _BodyWatch(response, on_complete)
    close, release = response.close, response.release
    watch.replace(
        content=_WatchedContent(response.content, watch),
        close=lambda: watch.closing(close),
        release=lambda: watch.closing(release),
    )


def when_lm15_complete(response: Any, on_complete: OnComplete) -> None:
    """The same for a response of lm15, sync or async, which hands out its body in `_chunks`."""
    watch, chunks = _BodyWatch(response, on_complete), response._chunks
    is_async = hasattr(chunks, "__anext__")
    watch.replace(_chunks=watch.chunks_async(chunks) if is_async else watch.chunks(chunks))


def _usage_in(body: bytes) -> Usage | None:
    """The usage in a whole body: a JSON document, or a stream that was read to its end."""
    usage = read_usage_json(body)
    if usage is None:
        scanner = UsageScanner()
        scanner.feed(body)
        usage = scanner.usage()
    return usage


def _httpx_response(reply: object) -> Any | None:
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
    """Replaces attributes of one HTTP response while its body arrives, and notes what is read."""

    def __init__(self, response: Any, on_complete: OnComplete) -> None:
        self._response = response
        self._replaced: Mapping[str, Any] = {}
        self._own_attributes: dict[str, Any] = {}
        self._scanner = UsageScanner()
        self._on_complete: OnComplete | None = on_complete
        self._last_bytes_at_s: float | None = None
        self._is_reading = False

    def replace(self, **attributes: Any) -> None:
        """Replace attributes of the response until its body is complete."""
        attributes_before = vars(self._response)
        for name, value in attributes.items():
            if name in attributes_before:
                self._own_attributes[name] = attributes_before[name]
            attributes_before[name] = value
        self._replaced = attributes

    def chunks(self, body: Iterator[Any]) -> Iterator[Any]:
        """Pass on a body until its end, or until its reader drops it."""
        self._is_reading = True
        try:
            for chunk in body:
                self.note(chunk)
                yield chunk
                self._is_reading = True
        finally:
            self._is_reading = False
            self.complete()

    async def chunks_async(self, body: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The same for an asynchronous body."""
        self._is_reading = True
        try:
            async for chunk in body:
                self.note(chunk)
                yield chunk
                self._is_reading = True
        finally:
            self._is_reading = False
            self.complete()

    def closing(self, close: Callable[[], Any]) -> Any:
        """Close the response."""
        try:
            return close()
        finally:
            self._note_closed()

    async def closing_async(self, close: Callable[[], Awaitable[Any]]) -> Any:
        """The same for an asynchronous response."""
        try:
            return await close()
        finally:
            self._note_closed()

    def note(self, chunk: Any) -> None:
        """Take in what the caller has read: bytes, text, or bytes and the end of a chunk."""
        self._is_reading = False
        self._last_bytes_at_s = time.monotonic()
        data = chunk[0] if isinstance(chunk, tuple) else chunk
        data = data.encode() if isinstance(data, str) else data
        self._scanner.feed(data)
        if data[-16:].rstrip().endswith(b"[DONE]"):  # some readers stop here and leave the rest
            self.complete()

    def complete(self) -> None:
        """Give the response its attributes back, and say that it has arrived; once."""
        on_complete, self._on_complete = self._on_complete, None
        if on_complete is not None:
            attributes = vars(self._response)
            for name, value in self._replaced.items():
                if attributes.get(name) is value:
                    del attributes[name]
            attributes.update(self._own_attributes)
            on_complete(self._scanner.usage(), self._last_bytes_at_s or time.monotonic())

    def _note_closed(self) -> None:
        # httpx closes a response before it hands out the rest of a chunk that it cut up
        if not self._is_reading:
            self.complete()


def _watch_httpx(response: Any, watch: _BodyWatch) -> None:
    iter_bytes, aiter_bytes = response.iter_bytes, response.aiter_bytes
    close, aclose = response.close, response.aclose

    def watched_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
        return watch.chunks(iter_bytes(chunk_size))

    def watched_bytes_async(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        return watch.chunks_async(aiter_bytes(chunk_size))

    watch.replace(
        iter_bytes=watched_bytes,
        aiter_bytes=watched_bytes_async,
        close=lambda: watch.closing(close),
        aclose=lambda: watch.closing_async(aclose),
    )


class _WatchedContent:
    """aiohttp's stream of a body, each of whose readers tells a watch what it read."""

    def __init__(self, content: Any, watch: _BodyWatch) -> None:
        self._content = content
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._content, name)
        if name in ("read", "readany", "readchunk", "readexactly", "readline", "readuntil"):
            return partial(self._read, method)
        if name in ("iter_any", "iter_chunked", "iter_chunks"):
            return lambda *args: self._watch.chunks_async(method(*args))
        return method

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._watch.chunks_async(aiter(self._content))

    async def _read(self, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        piece = await method(*args, **kwargs)
        self._watch.note(piece)
        if self._content.at_eof():
            self._watch.complete()
        return piece
