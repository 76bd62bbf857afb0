"""How requests of the OpenAI and Anthropic SDKs are tagged, by headers and body fields.

Both are made by the same generator: `request` of their two base clients is the one method behind
every resource, raw or parsed, streaming or not, and for Azure. Its `options` hold the request
before the SDK turns it into HTTP and retries it: a retry has the same turn.
Source: _base_client.py, SyncAPIClient.request and AsyncAPIClient.request (openai 2 and 3,
anthropic 0.71 to 2).
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from agentkv.client.job import Job
from agentkv.client.patches import Method, copy_of, is_covered
from agentkv.client.replies import Usage, read_usage
from agentkv.client.server import JobLink, server_at
from agentkv.client.tagged_call import (
    JobFinder,
    TaggedCall,
    is_tagged_by_hand,
    log_failure,
    lower_case,
    tagging,
    tagging_patch,
)
from agentkv.client.transport import spelled_as, texts_of
from agentkv.protocol import WIRE_FIELD, WIRE_VERSION
from agentkv.protocol.foreign import CONTEXT_FIELD, agentic_context

logger = logging.getLogger(__name__)

TAGGED_PATHS = frozenset({"/chat/completions", "/completions", "/responses", "/v1/messages"})

_PACKAGES = ("openai", "anthropic")

_checked_clients: weakref.WeakSet[Any] = weakref.WeakSet()
"""Clients already checked for monkeypatched methods, including our own copies."""


class SDKCall(TaggedCall):
    """A request in the form of the SDK's `options`."""

    def __init__(
        self,
        job: Job[Any],
        client: Any,
        headers: Mapping[str, str],
        cast_to: Any,
        options: Any,
        kwargs: Mapping[str, Any],
    ) -> None:
        super().__init__(job, link_of(job, client, headers))
        self.kwargs = kwargs
        self._default_headers = client.default_headers
        self._cast_to = cast_to
        self._options = options
        self._parse: Callable[[Any], Any] | None = None
        self._has_arrived = False
        self._usage: Usage | None = None

    def tag(self) -> None:
        options, update = self._options, dict[str, Any]()
        parse = getattr(options, "post_parser", None)
        if callable(parse):
            self._parse = parse
            update["post_parser"] = self._parse_arrived
        if self.headers:
            given = options.headers if isinstance(options.headers, Mapping) else {}
            tags = spelled_as({**self._default_headers, **given}, self.headers)
            update["headers"] = {**tags, **given}
        if self.fields:
            update["extra_json"] = self._body_fields(options.extra_json or {})
        self.args = (self._cast_to, options.model_copy(update=update) if update else options)

    def _body_fields(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """The tags, and the caller's own fields."""
        fields = {**self.fields, **own}
        if not self.headers:
            fields[WIRE_FIELD] = WIRE_VERSION
        xargs = own.get("vllm_xargs") or {}
        if self.link.server.has_agentic_router and isinstance(xargs, Mapping):
            fields["vllm_xargs"] = {CONTEXT_FIELD: agentic_context(self.fields), **xargs}
        return fields

    def describe(self) -> tuple[str, str | None]:
        options = self._options
        is_text = options.url.partition("?")[0] == "/completions"
        model = options.json_data.get("model")
        return "text_completion" if is_text else "chat", model if isinstance(model, str) else None

    def fail(self, error: BaseException) -> None:
        self.end_sending()
        # an error about a successful (2xx) answer: the SDK rejected what the model wrote
        is_answered = getattr(getattr(error, "response", None), "is_success", False) is True
        if self._has_arrived or is_answered:
            self.close(self._usage, time.monotonic())
        else:
            self.close_unanswered(error)

    def _parse_arrived(self, reply: Any) -> Any:
        """Note that a reply reached the SDK's parser, which may reject what the model wrote."""
        self._has_arrived = True
        try:
            self._usage = read_usage(reply)
        except Exception:
            log_failure("could not read a reply")
        assert self._parse is not None
        return self._parse(reply)


def _prepare(
    job: Job[Any], client: Any, cast_to: Any, options: Any, **kwargs: Any
) -> SDKCall | None:
    """The call that a request becomes; None for other routes, and for one tagged by hand."""
    if options.url.partition("?")[0] not in TAGGED_PATHS:
        return None
    body, extra = options.json_data, options.extra_json or {}
    headers = texts_of(options.headers) if isinstance(options.headers, Mapping) else {}
    is_taggable = isinstance(body, Mapping) and isinstance(extra, Mapping)
    if not is_taggable or is_tagged_by_hand(job, body, lower_case(headers)):
        return None
    if is_tagged_by_hand(job, extra, {}):
        return None
    return SDKCall(job, client, headers, cast_to, options, kwargs)


def link_of(job: Job[Any], client: Any, headers: Mapping[str, str] | None = None) -> JobLink:
    """The way to the server that a client calls, unless the job's session names another one."""
    # Without a client the session applies to any server: each client knows its own.
    server_url = None if job.covered_client is None else job.server_url
    server = server_at(server_url or str(client.base_url))
    return job.link_to(server, client, headers or {}, is_direct=server_url is None)


SDK_PATCHES = tuple(
    tagging_patch(f"{package}._base_client:{owner}.request", _prepare)
    for package in _PACKAGES
    for owner in ("SyncAPIClient", "AsyncAPIClient")
)
"""Make every client of the two SDKs tag its requests."""


def is_sdk_client(client: object) -> bool:
    """Return True for a client of an SDK from this generator."""
    return callable(getattr(client, "request", None)) and hasattr(client, "base_url")


def drop_in(client: Any, find_job: JobFinder) -> Any:
    """Return a copy of a client that tags its requests, as its own copies do."""
    _warn_of_replacements(client)
    twin = copy_of(client)
    vars(twin).update(tagging_methods(twin, find_job))
    _checked_clients.add(twin)
    return twin


def tagging_methods(client: Any, find_job: JobFinder) -> dict[str, Method]:
    """The methods that make one client, and its copies (`with_options`), tag their requests."""

    @functools.wraps(type(client).copy)
    def tagging_copy(*args: Any, **options: Any) -> Any:
        twin = type(client).copy(client, *args, **options)
        vars(twin).update(tagging_methods(twin, find_job))
        _checked_clients.add(twin)
        return twin

    request = functools.partial(tagging(type(client).request, find_job, _prepare), client)
    return {"request": request, "copy": tagging_copy, "with_options": tagging_copy}


def _warn_of_replacements(client: Any) -> None:
    """Warn, once per client, of methods that `job.client` cannot take along.

    Tracers replace them: `client.chat.completions.create = traced(client.chat.completions.create)`.
    Such a function calls the client that it was made for, so a copy of the client lacks it.
    """
    if client in _checked_clients or is_covered(client):
        return
    names = list(_replacements_on(client, ""))
    if names:
        _checked_clients.add(client)
        logger.warning(
            "agentkv: %s of the client given to session() was replaced (by a tracer?), and "
            "job.client may be without it. Call the client itself inside the session, or wrap "
            "job.client there.",
            ", ".join(names),
        )


def _replacements_on(holder: Any, prefix: str) -> Iterator[str]:
    """The names of replaced methods and resources, as far as they were used already."""
    for name, value in list(vars(holder).items()):
        own = getattr(type(holder), name, None)
        if isinstance(own, cached_property):
            if _is_of_the_sdk(type(value)):
                yield from _replacements_on(value, f"{prefix}{name}.")
            elif _is_of_the_sdk(own.func):  # a resource of a subclass's own is made by the copy too
                yield f"{prefix}{name}"
        elif callable(own):
            yield f"{prefix}{name}"


def _is_of_the_sdk(definition: type | Callable[..., Any]) -> bool:
    return definition.__module__.partition(".")[0] in _PACKAGES
