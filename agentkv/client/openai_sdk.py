"""Intercepts the requests of the OpenAI SDK, for `session`: one method, used by all of them.

`request` of the SDK's two base clients is the same in versions 2 and 3, for every resource, raw or
parsed, streaming or not, and for Azure. A session without a client replaces it on the classes; a
session with a client replaces it on that client while it is open, and on a copy for `job.client`.
Source: openai/_base_client.py, SyncAPIClient.request and AsyncAPIClient.request (2.x, 3.x).
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar, cast

from agentkv.client import context
from agentkv.client.job import Job
from agentkv.client.tagged_call import call_for, log_failure
from agentkv.client.threads import THREAD_PATCHES, Method, MethodPatch
from agentkv.errors import AgentKVServerError

logger = logging.getLogger(__name__)

ClientT = TypeVar("ClientT")
JobFinder = Callable[[Any], Job[Any] | None]
"""Returns the job that a request of a client belongs to, if any."""

_sdk_patches: list[MethodPatch] = []

_checked_clients: weakref.WeakSet[Any] = weakref.WeakSet()
"""Clients already checked for monkeypatched methods, including our own copies."""

_lock = threading.Lock()
_covered: dict[int, tuple[int, dict[str, Method]]] = {}
"""Open sessions and our methods on their client, by the id of a client given to a session."""


def require_client(client: object) -> None:
    """Raise TypeError unless `client` is an OpenAI SDK client instance."""
    if isinstance(client, type):
        raise TypeError(
            f"session(client): got the class {client.__name__}, allowed is a client made of it: "
            f"session({client.__name__}(...))"
        )
    if not callable(getattr(client, "request", None)) or not hasattr(client, "base_url"):
        raise TypeError(
            f"session(client): got {type(client).__name__}, allowed is an OpenAI or AsyncOpenAI "
            "client (or none: then every client of the OpenAI SDK is covered)"
        )


def tagged_client(client: ClientT, job: Job[Any]) -> ClientT:
    """A copy of a client, sharing its connections, whose requests are turns of a job.

    Copies of the copy (`with_options`) belong to the job as well.
    """
    _warn_of_replacements(client)
    twin: Any = copy.copy(client)
    attributes = vars(twin)
    for name in list(attributes):
        # client.chat and the like are cached, and refer to the client they were made for
        if isinstance(getattr(type(twin), name, None), cached_property):
            del attributes[name]
    attributes.update(_tagging_methods(twin, lambda _: None if job.is_over else job))
    _checked_clients.add(twin)
    return cast(ClientT, twin)


def cover(client: Any) -> None:
    """Tag the requests of a client itself until `uncover`, in threads and tasks of its session.

    A method that somebody else has replaced on the client stays as it is.
    """
    with _lock:
        num_sessions, methods = _covered.get(id(client), (0, {}))
        if not num_sessions:
            added = _tagging_methods(client, lambda _: _job_covering(client))
            methods = {name: added[name] for name in added if name not in vars(client)}
            vars(client).update(methods)
        _covered[id(client)] = num_sessions + 1, methods


def uncover(client: Any) -> None:
    """Undo one `cover`; with the last one the client is as it was."""
    with _lock:
        num_sessions, methods = _covered.pop(id(client))
        if num_sessions > 1:
            _covered[id(client)] = num_sessions - 1, methods
            return
        for name, method in methods.items():
            if vars(client).get(name) is method:
                del vars(client)[name]


def instrument() -> None:
    """Make every client of the OpenAI SDK tag its requests inside a session; once per process.

    Does nothing if the SDK is not installed.
    """
    if not _sdk_patches:
        try:
            from openai import _base_client
        except ImportError:
            logger.debug("the OpenAI SDK is not installed: nothing to instrument")
            return
        for owner in (_base_client.SyncAPIClient, _base_client.AsyncAPIClient):
            _sdk_patches.append(MethodPatch(owner, "request", _tagging_any_client))
    for patch in _sdk_patches:
        patch.install()


def inherit_jobs_in_threads() -> None:
    """Make threads and thread pools carry the current job along; once per process."""
    for patch in THREAD_PATCHES:
        patch.install()


def uninstrument() -> None:
    """Restore every method that sessions replaced, of the OpenAI SDK and of threads.

    Sessions with a client go on working; the next session replaces what it needs again.
    """
    for patch in (*_sdk_patches, *THREAD_PATCHES):
        patch.remove()


def _tagging_any_client(original: Method, patch: MethodPatch) -> Method:
    return _tagging(original, lambda client: _job_covering(client) if patch.is_active else None)


def _job_covering(client: Any) -> Job[Any] | None:
    """The innermost live job of a session that was entered with this client, or without one."""
    job = cast("Job[Any] | None", context.innermost())
    while job is not None:
        if (job.covered_client is None or job.covered_client is client) and not job.is_over:
            return job
        job = job.enclosing
    return None


def _tagging_methods(client: Any, find_job: JobFinder) -> dict[str, Method]:
    """The methods that make one client, and its copies, tag their requests."""

    @functools.wraps(type(client).copy)
    def tagging_copy(*args: Any, **options: Any) -> Any:
        twin = type(client).copy(client, *args, **options)
        vars(twin).update(_tagging_methods(twin, find_job))
        _checked_clients.add(twin)
        return twin

    request = functools.partial(_tagging(type(client).request, find_job), client)
    return {"request": request, "copy": tagging_copy, "with_options": tagging_copy}


def _tagging(original: Method, find_job: JobFinder) -> Method:
    """The SDK's `request` method, sync or async, with its calls made turns of a job."""

    @functools.wraps(original)
    def request(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        try:
            call = call_for(find_job(self), self, options)
            if call is not None:
                if call.server.is_unasked:
                    call.server.ask()
                call.begin()
        except AgentKVServerError:
            raise
        except Exception:
            log_failure("could not tag a request, which goes out untouched")
            call = None
        if call is None:
            return original(self, cast_to, options, **kwargs)
        try:
            reply = original(self, cast_to, call.options, **kwargs)
        except BaseException as error:
            call.fail(error)
            raise
        call.complete(reply)
        return reply

    @functools.wraps(original)
    async def request_async(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        try:
            call = call_for(find_job(self), self, options)
            if call is not None:
                if call.server.is_unasked:
                    await call.server.ask_async()
                call.begin()
        except AgentKVServerError:
            raise
        except Exception:
            log_failure("could not tag a request, which goes out untouched")
            call = None
        if call is None:
            return await original(self, cast_to, options, **kwargs)
        try:
            reply = await original(self, cast_to, call.options, **kwargs)
        except BaseException as error:
            call.fail(error)
            raise
        call.complete(reply)
        return reply

    return request_async if inspect.iscoroutinefunction(original) else request


def _warn_of_replacements(client: Any) -> None:
    """Warn, once per client, of methods that `job.client` cannot take along.

    Tracers replace them: `client.chat.completions.create = traced(client.chat.completions.create)`.
    Such a function calls the client that it was made for, so a copy of the client lacks it.
    """
    if client in _checked_clients or id(client) in _covered:
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
    return definition.__module__.partition(".")[0] == "openai"
