"""Reads the token usage of a reply, and detects when the reply has arrived.

`tagged_call` uses it to close a turn. The caller's objects are passed on: a reply that is still
arriving is watched at the HTTP response, whose readers are replaced until its end. Every way to
read one of httpx or httpx2, sync or async, ends in `iter_bytes` and `close`, every way to read one
of requests in `iter_content`. Knows nothing of jobs or turns.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
        return {name: getattr(self, name) for name in _TOKEN_COUNTS}


_TOKEN_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens")
OnComplete = Callable[[Usage | None, float], None]


def read_usage(reply: object) -> Usage | None:
    """Read the usage of a chat completion, completion, response, message, or an event with one.

    Takes the objects of the SDKs and plain JSON alike.
    """
    usage = _member(reply, "usage")
    for name in ("response", "message"):
        usage = usage or _member(_member(reply, name), "usage")
    if usage is None:
        return None
    details = _member(usage, "prompt_tokens_details") or _member(usage, "input_tokens_details")
    prompt_tokens, cached_tokens = _count(usage, "prompt_tokens"), _count(details, "cached_tokens")
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
    choices = _member(reply, "choices")
    is_aborted = isinstance(choices, list) and any(
        _member(choice, "finish_reason") == "abort" for choice in choices
    )
    return Usage(prompt_tokens, cached_tokens, output_tokens, is_aborted)


def read_usage_json(text: bytes) -> Usage | None:
    """Read the usage in a JSON document; None if the text is no JSON or has no usage."""
    with suppress(Exception):  # this runs in the caller's own reading of its bytes
        return read_usage(json.loads(text))
    return None


def _member(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _count(holder: object, name: str) -> int | None:
    value = _member(holder, name)
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
    """Watch a response of httpx likewise."""
    if response.is_closed:
        on_complete(_usage_in(response.content), time.monotonic())
    else:
        _BodyWatch(response, on_complete, ("iter_bytes", "aiter_bytes"), ("close", "aclose"))


def when_requests_complete(response: Any, on_complete: OnComplete, *, is_stream: bool) -> None:
    """Watch a response of requests likewise."""
    if is_stream:
        _BodyWatch(response, on_complete, ("iter_content",), ("close",))
    else:
        on_complete(_usage_in(response.content or b""), time.monotonic())


def when_aiohttp_complete(response: Any, on_complete: OnComplete) -> None:
    """Watch a response of aiohttp likewise, which hands out its body through `content`."""
    watch = _BodyWatch(response, on_complete, (), ("close", "release"))
    watch.replace(content=_WatchedContent(response.content, watch))


def when_lm15_complete(response: Any, on_complete: OnComplete) -> None:
    """Watch a response of lm15, sync or async, which hands out its body in `_chunks`."""
    watch = _BodyWatch(response, on_complete)
    watch.replace(_chunks=watch.chunks(response._chunks))


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
    holders = (getattr(reply, "http_response", None), getattr(reply, "response", None), reply)
    are_responses = (hasattr(h, "iter_bytes") and hasattr(h, "is_closed") for h in holders)
    return next((h for h, is_one in zip(holders, are_responses, strict=True) if is_one), None)


class _BodyWatch:
    """Replaces attributes of one HTTP response while its body arrives, and notes what is read.

    readers: methods that hand out its body, sync or async.
    closers: methods that close it.
    """

    def __init__(
        self,
        response: Any,
        on_complete: OnComplete,
        readers: Sequence[str] = (),
        closers: Sequence[str] = (),
    ) -> None:
        self._response = response
        self._replaced: dict[str, Any] = {}
        self._own_attributes: dict[str, Any] = {}
        self._scanner = UsageScanner()
        self._on_complete: OnComplete | None = on_complete
        self._last_bytes_at_s: float | None = None
        self._is_reading = False
        self.replace(
            **{name: self._watched_reader(getattr(response, name)) for name in readers},
            **{name: self._watched_closer(getattr(response, name)) for name in closers},
        )

    def replace(self, **attributes: Any) -> None:
        """Replace attributes of the response until its body is complete."""
        before = vars(self._response)
        self._own_attributes |= {name: before[name] for name in attributes if name in before}
        before.update(attributes)
        self._replaced |= attributes

    def chunks(self, body: Any) -> Any:
        """Pass on a body, sync or async, until its end, or until its reader drops it."""
        return self._async_chunks(body) if hasattr(body, "__anext__") else self._chunks(body)

    def _chunks(self, body: Iterator[Any]) -> Iterator[Any]:
        with self._until_its_end():
            for chunk in body:
                self.note(chunk)
                yield chunk
                self._is_reading = True

    async def _async_chunks(self, body: AsyncIterator[Any]) -> AsyncIterator[Any]:
        with self._until_its_end():
            async for chunk in body:
                self.note(chunk)
                yield chunk
                self._is_reading = True

    @contextmanager
    def _until_its_end(self) -> Iterator[None]:
        self._is_reading = True
        try:
            yield
        finally:
            self._is_reading = False
            self.complete()

    def _watched_reader(self, read: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.chunks(read(*args, **kwargs))

    def _watched_closer(self, close: Callable[[], Any]) -> Callable[[], Any]:
        def closing() -> Any:
            with self._noting_closed():
                return close()

        async def closing_async() -> Any:
            with self._noting_closed():
                return await close()

        return closing_async if inspect.iscoroutinefunction(close) else closing

    @contextmanager
    def _noting_closed(self) -> Iterator[None]:
        try:
            yield
        finally:
            # httpx closes a response before it hands out the rest of a chunk that it cut up
            if not self._is_reading:
                self.complete()

    def note(self, chunk: Any) -> None:
        """Take in what the caller has read: bytes, text, or bytes and the end of a chunk."""
        self._is_reading = False
        self._last_bytes_at_s = time.monotonic()
        data = chunk[0] if isinstance(chunk, tuple) else chunk
        data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
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
            return lambda *args: self._watch.chunks(aiter(method(*args)))
        return method

    def __aiter__(self) -> AsyncIterator[bytes]:
        chunks: AsyncIterator[bytes] = self._watch.chunks(aiter(self._content))
        return chunks

    async def _read(self, method: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        piece = await method(*args, **kwargs)
        self._watch.note(piece)
        if self._content.at_eof():
            self._watch.complete()
        return piece
