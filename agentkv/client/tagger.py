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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agentkv.client.job import Job, TaggedTurn
from agentkv.client.patches import Method, harmless, log_failure
from agentkv.client.server import Route, server_at
from agentkv.protocol import SESSION_HEADER, TAG_HEADERS
from agentkv.tracing import RequestShape

FindJob = Callable[[Any], Job[Any] | None]
"""Returns the job that the requests of a client belong to now, if any."""

_MODEL_URL = re.compile(
    r"(.*?)(?:(?:/v\d+)?/chat/completions|/v\d+/(?:completions|responses|messages)"
    r"|/inference/v\d+/generate)/?"
)
"""A URL whose POST is a turn, with the server's root. `/messages` alone is a route of others, too,
which send mails or texts."""


def tagging(send: Method, find_job: FindJob, *, is_async: bool) -> Method:
    """The `send` of httpx clients, whose requests to a model become turns of a job."""

    @functools.wraps(send)
    def tagged_send(client: Any, request: Any, *args: Any, **options: Any) -> Any:
        turn = turn_of(find_job(client), client, request)
        if turn is None:
            return send(client, request, *args, **options)
        if turn.needs_plugin:
            turn.route().require_plugin()
        with turn:
            turn.response = response = send(client, request, *args, **options)
        return response

    @functools.wraps(send)
    async def tagged_send_async(client: Any, request: Any, *args: Any, **options: Any) -> Any:
        turn = turn_of(find_job(client), client, request)
        if turn is None:
            return await send(client, request, *args, **options)
        if turn.needs_plugin:
            await turn.route().require_plugin_async()
        with turn:
            turn.response = response = await send(client, request, *args, **options)
        return response

    return tagged_send_async if is_async else tagged_send


def turn_of(job: Job[Any] | None, client: Any, request: Any) -> TaggedRequest | None:
    """The turn that a request becomes; None if it is none, or names another job by a header.

    One with this job's own id as `X-Session-ID`, as trainers send it, is a turn of this job.
    """
    if job is None:
        return None
    try:
        found = _MODEL_URL.fullmatch(str(request.url).partition("?")[0])
        headers, own_id = request.headers, job.routing_headers[SESSION_HEADER]
        is_named = TAG_HEADERS["job_id"] in headers or headers.get(SESSION_HEADER, own_id) != own_id
        if found is None or request.method != "POST" or is_named:
            return None
        return TaggedRequest(job, client, request, found[1])
    except Exception:
        log_failure("could not read a request, which goes out untouched")
        return None


class TaggedRequest:
    """A request of httpx as a turn of a job: `with turn: turn.response = send(request)`."""

    def __init__(self, job: Job[Any], client: Any, request: Any, root_url: str) -> None:
        self.response: Any = None
        self.needs_plugin = job.on_missing_server == "raise"
        self._job = job
        self._client = client
        self._request = request
        self._own_headers = request.headers
        is_named = job.server_url is not None and job.covered_client is not None
        self._server_url = str(job.server_url) if is_named else root_url
        self._turn: TaggedTurn | None = None

    def route(self) -> Route:
        """Return the job's way to the server, with the keys by which this request is let in."""
        server = server_at(self._server_url)
        return Route(self._job, server, self._client, self._request.headers)

    def __enter__(self) -> None:
        """Open the turn, and put its tags into the headers until the request was sent."""
        request = self._request
        try:
            key = str(request.url), hash(self._body())
            self._turn = self._job.begin_turn(key, self._describe)
            request.headers = request.headers.copy()
            request.headers.update(self._turn.headers())
        except Exception:
            log_failure("could not tag a request, which goes out untouched")

    @harmless("could not end a turn")
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the turn: with an exception, with the reply, or when its stream is closed."""
        response, self.response = self.response, None  # or it would never be dropped
        route = self.route()
        self._job.listeners[route.server] = route.tell
        self._request.headers = self._own_headers  # its owner may send it again
        turn = self._turn
        if turn is None:
            return
        turn.leave()
        if error is not None:
            turn.end(error)
        elif not response.is_success:
            turn.end(response.status_code)
        elif response.is_closed:
            turn.end()
        else:
            _when_closed(response, turn.end)

    def _body(self) -> bytes:
        """The body of the request; empty if it is a stream that can be read once only."""
        with suppress(Exception):  # httpx.RequestNotRead
            return bytes(self._request.content)
        return b""

    def _describe(self) -> RequestShape:
        """The request as its span describes it."""
        path, model = self._request.url.path, None
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            model = str(json.loads(self._body())["model"])
        server = server_at(self._server_url)
        is_text = path.endswith(("/completions", "/generate")) and "/chat/" not in path
        return RequestShape(
            operation="text_completion" if is_text else "chat",
            model=model,
            server_url=server.root_url,
            is_vllm=bool(server.has_plugin),
        )


def _when_closed(response: Any, end: Callable[[], None]) -> None:
    """Call `end` once the stream of a response was read to its end, closed or dropped."""
    stream = response.stream
    name = "aclose" if hasattr(stream, "aclose") else "close"
    close = getattr(stream, name)

    def end_and_close() -> Any:
        end()
        return close()  # or what closes it when it is awaited

    vars(stream)[name] = end_and_close
    weakref.finalize(response, end).atexit = False
