"""Makes each request to a model a turn of a job: in the `send` of httpx, by headers.

The SDKs of OpenAI and Anthropic, litellm and most frameworks send through httpx, or through httpx2,
its next major version. A POST to a model's route is a turn; every other request passes. The body
and the reply stay as they are.
Source: `Client.send` and `AsyncClient.send` of httpx 0.28 and httpx2 2: each way to send a request,
whole or streamed, goes through them, and each retry of an SDK comes as another request.
"""

from __future__ import annotations

import functools
import json
import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from agentkv.client.job import Job
from agentkv.client.ledger import TaggedTurn
from agentkv.client.patches import Method, log_failure
from agentkv.client.server import Route, server_at
from agentkv.protocol import OUR_HEADERS, SESSION_HEADER
from agentkv.protocol.foreign import READ_HEADERS, fields_from_headers
from agentkv.tracing import RequestShape, Span

_MODEL_URL = re.compile(
    r"(.*?)(?:(?:/v\d+)?/chat/completions|/v\d+/(?:completions|responses|messages)"
    r"|/inference/v\d+/generate)/?"
)
"""A URL whose POST is a turn, with the server's root. `/messages` alone is a route of others, too,
which send mails or texts."""
_OF_ONE_REQUEST = re.compile(
    r"host|connection|accept.*|content-.*|transfer-encoding|user-agent|traceparent|tracestate"
    rf"|x-stainless-.*|{OUR_HEADERS}.*|{SESSION_HEADER.lower()}",
    re.IGNORECASE,
)
"""Headers of a request that calls of our own to the same server do not repeat."""


class TaggedRequest:
    """A request of httpx as a turn of a job: `with call: call.response = send(request)`."""

    def __init__(self, job: Job[Any], client: Any, request: Any, root_url: str) -> None:
        self.response: Any = None
        self._job = job
        self._client = client
        self._request = request
        self._own_headers = request.headers
        self._turn: TaggedTurn | None = None
        self._span: Span | None = None
        server_url = None if job.covered_client is None else job.server_url
        self.route = job.route_to(server_at(server_url or root_url), client, self._keys())

    def __enter__(self) -> None:
        """Open the turn, and put its tags into the headers until the request was sent."""
        job, request = self._job, self._request
        try:
            self._turn = job.ledger.begin((str(request.url), hash(_content_of(request))))
            tags = {**job.tags(self._turn).as_headers(), **job.routing_headers}
            if job.trace is not None:
                self._span = job.trace.turn(self._turn.number, _shape_of(request, self.route))
                tags |= {} if self._span is None else self._span.headers
            request.headers = request.headers.copy()
            request.headers.update(tags)
        except Exception as error:
            log_failure("could not tag a request, which goes out untouched")
            self._end(error)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the turn: with an exception, with the reply, or when its stream is closed."""
        response, self.response = self.response, None  # or it would never be dropped
        try:
            self._note_route()
            self._request.headers = self._own_headers  # its owner may send it again
            if self._span is not None:
                self._span.leave()
            if error is not None:
                self._end(error)
            elif not response.is_success:
                self._end(response.status_code)
            elif response.is_closed:
                self._end()
            else:
                _when_closed(response, self._end)
        except Exception:
            log_failure("could not end a turn")

    def _note_route(self) -> None:
        """The job's tools and its end are reported with the keys that this request had."""
        keys = self._keys()
        if keys != self.route.headers:  # httpx's `auth=` adds one while it sends
            self.route = self._job.route_to(self.route.server, self._client, keys)
        self._job.listeners[self.route.server] = self.route

    def _keys(self) -> dict[str, str]:
        """The headers by which the server, or a gateway before it, lets the request in."""
        return keys_among(self._request.headers)

    def _end(self, error: object = None) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if error is None:
            self._job.ledger.finish(turn)
        else:
            self._job.ledger.fail(turn)
        if self._span is not None:
            self._span.leave()
            self._span.end(error)
        if error is None and self._job.is_over:  # this turn was pinned after the job's release
            self._job.release()


def keys_among(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a call of our own to the same server needs, too."""
    return {
        name: text
        for name, text in headers.items()
        if isinstance(text, str) and not _OF_ONE_REQUEST.fullmatch(name)
    }


def _when_closed(response: Any, end: Callable[[], None]) -> None:
    """Call `end` once the stream of a response was read to its end, closed or dropped."""

    def end_quietly() -> None:
        try:
            end()
        except Exception:
            log_failure("could not end a turn")

    stream = response.stream
    if hasattr(stream, "aclose"):
        vars(stream)["aclose"] = _then_async(stream.aclose, end_quietly)
    else:
        vars(stream)["close"] = _then(stream.close, end_quietly)
    weakref.finalize(response, end_quietly).atexit = False


def _then(close: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    def close_and_end() -> None:
        try:
            close()
        finally:
            end()

    return close_and_end


def _then_async(close: Method, end: Callable[[], None]) -> Method:
    async def close_and_end() -> None:
        try:
            await close()
        finally:
            end()

    return close_and_end


def prepared(job: Job[Any] | None, client: Any, request: Any) -> TaggedRequest | None:
    """The turn that a request becomes; None if it is none, or names a job by itself."""
    if job is None:
        return None
    try:
        found = _MODEL_URL.fullmatch(str(request.url).partition("?")[0])
        if request.method != "POST" or found is None or _names_a_job(job, request):
            return None
        return TaggedRequest(job, client, request, found[1])
    except Exception:
        log_failure("could not tag a request, which goes out untouched")
        return None


def _names_a_job(job: Job[Any], request: Any) -> bool:
    """True if a request was tagged by hand, or already: it names a job as the server reads it.

    One with this job's own id as `X-Session-ID`, as trainers send it, is a turn of this job all the
    same, even if the program behind it sends ids of its own.
    """
    headers = request.headers
    names = READ_HEADERS.intersection(headers.keys())
    if headers.get(SESSION_HEADER) == job.routing_headers[SESSION_HEADER]:
        names = {name for name in names if name.startswith(OUR_HEADERS)}
    if names and "job_id" in fields_from_headers({name: headers[name] for name in names}):
        return True
    content = _content_of(request)
    if b'"job_id"' not in content and b'"session_id"' not in content:
        return False
    body = _json_of(content)  # the words may stand in the schema of a tool
    holders = (body, body.get("extra_body"), body.get("vllm_xargs"))
    return any(
        isinstance(holder, Mapping) and ("job_id" in holder or "session_id" in holder)
        for holder in holders
    )


def _content_of(request: Any) -> bytes:
    """The body of a request; empty if it is a stream that can be read once only."""
    try:
        content: bytes = request.content
        return content
    except Exception:  # httpx.RequestNotRead
        return b""


def _json_of(content: bytes) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        body = json.loads(content)
        if isinstance(body, Mapping):
            return body
    return {}


def _shape_of(request: Any, route: Route) -> RequestShape:
    """A request as its span describes it."""
    path, model = request.url.path, _json_of(_content_of(request)).get("model")
    is_text = path.endswith(("/completions", "/generate")) and "/chat/" not in path
    return RequestShape(
        operation="text_completion" if is_text else "chat",
        model=model if isinstance(model, str) else None,
        server_url=route.server.root_url,
        is_vllm=route.server.has_plugin,
    )


FindJob = Callable[[Any], Job[Any] | None]
"""Returns the job that the requests of a client belong to now, if any."""


def tagging(send: Method, find_job: FindJob, *, is_async: bool) -> Method:
    """The `send` of httpx clients, whose requests to a model become turns of a job."""

    @functools.wraps(send)
    def tagged_send(client: Any, request: Any, *args: Any, **options: Any) -> Any:
        call = prepared(find_job(client), client, request)
        if call is None:
            return send(client, request, *args, **options)
        call.route.require_plugin()
        with call:
            call.response = response = send(client, request, *args, **options)
        return response

    @functools.wraps(send)
    async def tagged_send_async(client: Any, request: Any, *args: Any, **options: Any) -> Any:
        call = prepared(find_job(client), client, request)
        if call is None:
            return await send(client, request, *args, **options)
        await call.route.require_plugin_async()
        with call:
            call.response = response = await send(client, request, *args, **options)
        return response

    return tagged_send_async if is_async else tagged_send
