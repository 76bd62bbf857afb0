"""How requests of httpx, requests, aiohttp and lm15 (in DSPy) are tagged, by headers alone.

litellm, instructor, DSPy, other SDKs and hand-written loops send theirs through one of these
libraries. A POST to a route of an OpenAI or Anthropic API is a turn; everything else passes. No
request waits for the server: headers are safe anywhere, so nobody has to ask it first.
Source: httpx 0.28 and httpx2 2 (`Client.send`), requests 2.34 (`Session.send`), aiohttp 3.14
(`ClientSession._request`), DSPy 3.4: the one method behind every way to send a request.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

from agentkv.client.job import Job
from agentkv.client.patches import Method, copy_of
from agentkv.client.replies import (
    OnComplete,
    when_aiohttp_complete,
    when_httpx_complete,
    when_lm15_complete,
    when_requests_complete,
)
from agentkv.client.server import JobLink, server_at
from agentkv.client.tagged_call import (
    JobFinder,
    TaggedCall,
    is_tagged_by_hand,
    lower_case,
    tagging,
    tagging_patch,
)

_TURN_URL = re.compile(
    r"(.*?)(?:(?:/v\d+)?/chat/completions|/v\d+/(?:completions|responses|messages)"
    r"|/inference/v\d+/generate)/?"
)
"""A URL whose POST is a turn, with the server's root. `/messages` alone is a route of others, too,
which send mails or texts."""

_KEYS = frozenset({"authorization", "x-api-key", "api-key"})
_LIBRARYS_OWN = frozenset({"accept", "accept-encoding", "connection", "user-agent"})


class HTTPCall(TaggedCall):
    """A request of an HTTP library, known by its client and its headers, names in lower case."""

    takes_fields = False

    def __init__(
        self,
        job: Job[Any],
        client: Any,
        root_url: str,
        headers: Mapping[str, str],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        super().__init__(job, link_of(job, client, root_url, headers))
        self.args, self.kwargs = args, kwargs
        self.client = client
        self.root_url = root_url

    @classmethod
    def prepare(cls, job: Job[Any], client: Any, request: Any, **kwargs: Any) -> Self | None:
        """The call that a request becomes; None if no model answers it, or it is tagged by hand."""
        root_url = _root_of_turn(job, request.method, request.url)
        if root_url is None:
            return None
        headers = lower_case(dict(request.headers))
        if _is_tagged_by_hand(job, cls.body_of(request), headers):
            return None
        return cls(job, client, root_url, headers, (request,), kwargs)

    @staticmethod
    def body_of(request: Any) -> Any:
        """The body of the library's request."""
        return request.body

    def complete(self, reply: Any) -> None:
        status = int(getattr(reply, "status_code", None) or reply.status)
        if 200 <= status < 300:
            super().complete(reply)
        else:
            self.end_sending()
            self.close_unanswered(status)


class HTTPXCall(HTTPCall):
    """A request of httpx, whose headers are replaced while it is sent."""

    @staticmethod
    def body_of(request: Any) -> Any:
        with suppress(RuntimeError):  # a body that is a stream
            return request.content

    def tag(self) -> None:
        (request,) = self.args
        self._own_headers = request.headers
        request.headers = request.headers.copy()
        request.headers.update(self.headers)
        self._num_headers = len(request.headers)

    def end_sending(self) -> None:
        (request,) = self.args
        # httpx may send this request again (redirect, auth): give it its own headers back
        sent, request.headers = request.headers, self._own_headers
        if len(sent) > self._num_headers:  # the key came while it was sent, by `auth=`
            self.link = link_of(self.job, self.client, self.root_url, lower_case(sent))
            self.job.links[self.link.server] = self.link
        super().end_sending()

    def when_complete(self, reply: Any, on_complete: OnComplete) -> None:
        when_httpx_complete(reply, on_complete)


class RequestsCall(HTTPCall):
    """A request of requests: a tagged copy is sent."""

    def tag(self) -> None:
        tagged = self.args[0].copy()
        tagged.headers.update(self.headers)
        self.args = (tagged,)

    def when_complete(self, reply: Any, on_complete: OnComplete) -> None:
        is_stream = self.kwargs.get("stream", self.client.stream)
        when_requests_complete(reply, on_complete, is_stream=bool(is_stream))


class LM15Call(HTTPCall):
    """A request of lm15: a tagged copy is sent."""

    def tag(self) -> None:
        (request,) = self.args
        tags = lower_case(self.headers)
        own = [(name, value) for name, value in request.headers if name.lower() not in tags]
        headers = [*own, *self.headers.items()]
        self.args = (dataclasses.replace(request, headers=headers),)

    def when_complete(self, reply: Any, on_complete: OnComplete) -> None:
        when_lm15_complete(reply, on_complete)


class AIOHTTPCall(HTTPCall):
    """A request of aiohttp, which gets the tags in its argument `headers`."""

    @classmethod
    def prepare(  # type: ignore[override]  # takes what ClientSession._request takes
        cls, job: Job[Any], client: Any, method: str, str_or_url: Any, **kwargs: Any
    ) -> Self | None:
        # `_build_url` adds the session's `base_url`, as `_request` itself will do
        root_url = _root_of_turn(job, method, client._build_url(str_or_url))
        if root_url is None:
            return None
        from multidict import CIMultiDict  # aiohttp depends on it

        own_headers = CIMultiDict(kwargs.get("headers") or ())
        headers = lower_case({**client.headers, **own_headers})
        body = kwargs.get("data") if kwargs.get("json") is None else kwargs["json"]
        if _is_tagged_by_hand(job, body, headers):
            return None
        kwargs["headers"] = own_headers
        return cls(job, client, root_url, headers, (method, str_or_url), kwargs)

    def tag(self) -> None:
        self.kwargs["headers"].update(self.headers)

    def when_complete(self, reply: Any, on_complete: OnComplete) -> None:
        when_aiohttp_complete(reply, on_complete)


def link_of(job: Job[Any], client: Any, root_url: str, headers: Mapping[str, str]) -> JobLink:
    """The way to a server, unless the job's session names another one for its client.

    Feedback carries the key of these headers, and those that the client adds to all its requests.
    """
    server_url = None if job.covered_client is None else job.server_url
    usual = lower_case(getattr(client, "headers", {}))  # lm15 has none
    keys = {name: headers[name] for name in _KEYS if name in headers}
    own = {name: usual[name] for name in usual if name not in _LIBRARYS_OWN}
    return job.link_to(server_at(server_url or root_url), None, {**own, **keys})


def _root_of_turn(job: Job[Any], method: str, url: object) -> str | None:
    """The root URL of the server, if the request is one that a model answers, and can be tagged."""
    if method.upper() != "POST" or not job.has_headers:
        return None
    found = _TURN_URL.fullmatch(str(url).partition("?")[0])
    return None if found is None else found[1]


def _is_tagged_by_hand(job: Job[Any], body: Any, headers: Mapping[str, str]) -> bool:
    if isinstance(body, str):
        body = body.encode()
    if isinstance(body, bytes):
        # JSON is parsed only if it can hold the field, perhaps in the schema of a tool
        text, body = body, None
        if b'"job_id"' in text or b'"session_id"' in text:
            with suppress(ValueError, RecursionError):
                body = json.loads(text)
    return is_tagged_by_hand(job, body, headers)


_Library = tuple[str, tuple[str, ...], str, type[HTTPCall]]
_LIBRARIES: tuple[_Library, ...] = (
    ("httpx", ("Client", "AsyncClient"), "send", HTTPXCall),
    ("httpx2", ("Client", "AsyncClient"), "send", HTTPXCall),
    ("requests", ("Session",), "send", RequestsCall),
    ("aiohttp", ("ClientSession",), "_request", AIOHTTPCall),
    ("dspy._vendor.lm15.transports._sync", ("StdlibTransport",), "stream", LM15Call),
    ("dspy._vendor.lm15.transports._async", ("StdlibAsyncTransport",), "_do_stream", LM15Call),
)


def is_http_client(client: object) -> bool:
    """True for a client of httpx or requests; a session of aiohttp cannot be copied for a job."""
    return _library_of(client) is not None


def drop_in(client: Any, find_job: JobFinder) -> Any:
    """A copy of a client whose requests are tagged."""
    twin = copy_of(client)
    vars(twin).update(tagging_methods(twin, find_job))
    return twin


def tagging_methods(client: Any, find_job: JobFinder) -> dict[str, Method]:
    """The method that makes one client tag its requests."""
    library = _library_of(client)
    assert library is not None
    _, _, name, kind = library
    method = tagging(getattr(type(client), name), find_job, kind.prepare)
    return {name: functools.partial(method, client)}


def _library_of(client: object) -> _Library | None:
    for library in _LIBRARIES:
        module, owners, name, _ = library
        kinds = (getattr(sys.modules.get(module), owner, None) for owner in owners)
        if name == "send" and any(kind is not None and isinstance(client, kind) for kind in kinds):
            return library
    return None


HTTP_PATCHES = tuple(
    tagging_patch(f"{module}:{owner}.{method}", kind.prepare)
    for module, owners, method, kind in _LIBRARIES
    for owner in owners
)
"""Make every client of these libraries tag its requests."""
