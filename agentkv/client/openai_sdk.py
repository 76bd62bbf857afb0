"""Where agentkv meets the OpenAI SDK: one method, through which every request of it goes.

`request` of the SDK's two base clients is the one place that is the same in its versions 2 and 3,
for every resource, raw or parsed, streaming or not, and for Azure. A session without a client
replaces it on the classes; a session with a client replaces it on a copy of that client.
Source: openai/_base_client.py, SyncAPIClient.request and AsyncAPIClient.request (2.x, 3.x).
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

from agentkv.client import context
from agentkv.client.job import Job
from agentkv.client.tagged_call import call_for
from agentkv.client.threads import THREAD_PATCHES, MethodPatch

logger = logging.getLogger(__name__)

ClientT = TypeVar("ClientT")
JobFinder = Callable[[], Job[Any] | None]

_sdk_patches: list[MethodPatch] = []

_checked_clients: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those whose replaced methods were told of, and our own copies, on which we replaced them."""


def require_client(client: object) -> None:
    """Raise TypeError for what is no client of the OpenAI SDK."""
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
    """A copy of an OpenAI client, sharing its connections, whose requests are turns of a job.

    The client given is left as it is. So are the copies made from it; copies of the copy
    (`with_options`) belong to the job as well.
    """
    _warn_of_replacements(client)
    twin: Any = copy.copy(client)
    _checked_clients.add(twin)
    attributes = vars(twin)
    for name in list(attributes):
        # client.chat and the like are cached, and hold on to the client they were made for
        if isinstance(getattr(type(twin), name, None), cached_property):
            del attributes[name]
    original = type(twin).request
    wrap = _async_request if inspect.iscoroutinefunction(original) else _sync_request
    request = wrap(original, _the_job(job))
    attributes["request"] = functools.partial(request, twin)

    @functools.wraps(type(twin).copy)
    def tagged_copy(*args: Any, **options: Any) -> Any:
        return tagged_client(type(twin).copy(twin, *args, **options), job)

    attributes["copy"] = attributes["with_options"] = tagged_copy
    return twin  # type: ignore[no-any-return]


def _warn_of_replacements(client: Any) -> None:
    names = [] if client in _checked_clients else replacements_on(client)
    if names:
        _checked_clients.add(client)
        logger.warning(
            "agentkv: %s of the client given to session() was replaced (by a tracer?). The "
            "replacement calls that client, whose calls are not the job's, so job.client may be "
            "without it. Wrap job.client inside the session instead, or use session() without a "
            "client, which covers clients as they are.",
            ", ".join(names),
        )


def instrument() -> None:
    """Have every client of the OpenAI SDK tag its requests inside a session; once per process.

    Without the SDK installed there is nothing to do.
    """
    if not _sdk_patches:
        try:
            from openai import _base_client
        except ImportError:
            logger.debug("the OpenAI SDK is not installed: nothing to instrument")
            return
        _sdk_patches.append(MethodPatch(_base_client.SyncAPIClient, "request", _patched_sync))
        _sdk_patches.append(MethodPatch(_base_client.AsyncAPIClient, "request", _patched_async))
    for patch in _sdk_patches:
        patch.install()


def inherit_jobs_in_threads() -> None:
    """Have threads and thread pools carry the current job along; once per process."""
    for patch in THREAD_PATCHES:
        patch.install()


def uninstrument() -> None:
    """Put back every method that sessions replaced, of the OpenAI SDK and of threads.

    Sessions with a client go on working; the next session replaces anew what it needs.
    """
    for patch in (*_sdk_patches, *THREAD_PATCHES):
        patch.remove()


def _the_job(job: Job[Any]) -> JobFinder:
    return lambda: None if job.is_over else job


def _job_for_any_client(patch: MethodPatch) -> JobFinder:
    """Finds the innermost live job that was entered without a client of its own."""

    def find() -> Job[Any] | None:
        if not patch.is_active:
            return None
        jobs = (job for job in context.chain() if job.client is None and not job.is_over)
        return next(jobs, None)

    return find


def _patched_sync(original: Callable[..., Any], patch: MethodPatch) -> Callable[..., Any]:
    return _sync_request(original, _job_for_any_client(patch))


def _patched_async(original: Callable[..., Any], patch: MethodPatch) -> Callable[..., Any]:
    return _async_request(original, _job_for_any_client(patch))


def _sync_request(original: Callable[..., Any], find_job: JobFinder) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = call_for(find_job(), self, options)
        if call is None:
            return original(self, cast_to, options, **kwargs)
        if call.server.is_unasked:
            call.server.ask()
        call.check_server()
        with call:
            reply = original(self, cast_to, call.options, **kwargs)
        call.read(reply)
        return reply

    return request


def _async_request(
    original: Callable[..., Awaitable[Any]], find_job: JobFinder
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def request(self: Any, cast_to: Any, options: Any, **kwargs: Any) -> Any:
        call = call_for(find_job(), self, options)
        if call is None:
            return await original(self, cast_to, options, **kwargs)
        if call.server.is_unasked:
            await call.server.ask_async()
        call.check_server()
        with call:
            reply = await original(self, cast_to, call.options, **kwargs)
        call.read(reply)
        return reply

    return request


def replacements_on(client: Any) -> list[str]:
    """Their names, such as "chat.completions.create". Looks only at what was used already."""
    return list(_replacements_on(client, ""))


def _replacements_on(holder: Any, prefix: str) -> Iterator[str]:
    for name, value in list(vars(holder).items()):
        own = getattr(type(holder), name, None)
        if isinstance(own, cached_property):
            if _is_of_the_sdk(type(value)):
                yield from _replacements_on(value, f"{prefix}{name}.")
            elif _is_of_the_sdk(own.func):  # or a subclass has made it, and makes it anew
                yield f"{prefix}{name}"
        elif callable(own):
            yield f"{prefix}{name}"


def _is_of_the_sdk(definition: type | Callable[..., Any]) -> bool:
    return definition.__module__.partition(".")[0] == "openai"
