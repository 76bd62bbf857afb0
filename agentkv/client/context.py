"""Which job a request belongs to: by the thread or task it is made in, and by its client.

A session makes its job current. asyncio copies the variable into new tasks by itself; Python 3.11
starts a thread with an empty context, so sessions carry the job into threads and work for pools.
A session with a client has the requests of that one httpx client tagged while it is open, and
`job.client` is bound to its job for good; a session without one patches the classes of httpx.
"""

from __future__ import annotations

import copy
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from agentkv.client.job import Job
from agentkv.client.patches import Method, Patch, replace
from agentkv.client.tagger import FindJob, tagging

ClientT = TypeVar("ClientT")

innermost: ContextVar[Job[Any] | None] = ContextVar("agentkv_job", default=None)
"""The job entered last, over or not; `enclosing` leads outwards from it."""


def current_job() -> Job[Any] | None:
    """The job of the innermost session that this thread or task is in; None outside of any."""
    job = innermost.get()
    while job is not None and job.is_over:
        job = job.enclosing
    return job


def job_covering(client: object) -> Job[Any] | None:
    """The innermost live job whose session covers this httpx client, or was entered without one."""
    job = innermost.get()
    while job is not None and (job.is_over or job.covered_client not in (None, client)):
        job = job.enclosing
    return job


@contextmanager
def job_made_current(job: Job[Any] | None) -> Iterator[None]:
    """Make a job, or none, current for a block of code that runs in one thread or task."""
    token = innermost.set(job)
    try:
        yield
    finally:
        innermost.reset(token)


# Threads. Only our own variable is carried over: copying the whole context would change what other
# libraries see (decimal's precision is in there too).


def _noting_the_job(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        vars(thread)["_agentkv_job"] = current_job() if patch.is_active else None
        original(thread)

    return start


def _entering_the_job(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def bootstrap(thread: threading.Thread) -> None:
        job = vars(thread).pop("_agentkv_job", None)
        if job is not None:
            innermost.set(job)
        original(thread)

    return bootstrap


def _inheriting_submit(original: Callable[..., Future[Any]], patch: Patch) -> Method:
    @functools.wraps(original)
    def submit(
        pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        job = current_job() if patch.is_active else None
        if job is None:
            return original(pool, fn, *args, **kwargs)
        with job_made_current(None):  # the pool's thread outlives the job, serves others
            return original(pool, job_made_current(job)(fn), *args, **kwargs)

    return submit


THREAD_PATCHES = (
    Patch("threading:Thread.start", _noting_the_job),
    # the first method that a new thread calls: `run` may be the user's own
    Patch("threading:Thread._bootstrap_inner", _entering_the_job),
    Patch("concurrent.futures.thread:ThreadPoolExecutor.submit", _inheriting_submit),
)
"""Carry the current job into new threads and into work for thread pools."""


# All clients of httpx


def _tagging_all(original: Method, patch: Patch) -> Method:
    def find_job(client: Any) -> Job[Any] | None:
        return job_covering(client) if patch.is_active else None

    return tagging(original, find_job, is_async="Async" in patch.target)


HTTP_LIBRARIES = ("httpx", "httpx2")
HTTP_PATCHES = tuple(
    Patch(f"{library}:{kind}.send", _tagging_all)
    for library in HTTP_LIBRARIES
    for kind in ("Client", "AsyncClient")
)
"""Make the requests of every httpx client turns of the job that is current."""


# One client


def http_client_of(client: object) -> Any:
    """The httpx client through which a client sends: itself, or that of an SDK's client.

    Raises TypeError if it has none.
    """
    libraries = filter(None, map(sys.modules.get, HTTP_LIBRARIES))
    kinds = tuple(kind for each in libraries for kind in (each.Client, each.AsyncClient))
    for candidate in (client, getattr(client, "_client", None)):
        if isinstance(candidate, kinds):
            return candidate
    raise TypeError(
        f"session(client): got {client!r:.80}, allowed is an OpenAI or Anthropic client, or one of "
        "httpx (or none: then all of them are covered; other libraries send job.headers)"
    )


def _tagging_one(http_client: Any, find_job: FindJob) -> Method:
    """Its `send` as it is now, be it of its class or a tracer's replacement, with our tags."""
    send = http_client.send

    def send_of_client(_: Any, *args: Any, **options: Any) -> Any:
        return send(*args, **options)

    tagged = tagging(send_of_client, find_job, is_async=hasattr(http_client, "aclose"))
    return functools.partial(tagged, http_client)


_lock = threading.Lock()
_covered: dict[int, list[Callable[[], bool]]] = {}
"""For each session of a covered httpx client, by its id, what undoes its replaced `send`."""


def cover(http_client: Any) -> None:
    """Make the requests of one httpx client turns until `uncover`."""
    with _lock:
        undos = _covered.setdefault(id(http_client), [])
        if not undos:
            undos.append(replace(http_client, "send", _tagging_one(http_client, job_covering)))
        else:
            undos.append(undos[0])


def uncover(http_client: Any) -> None:
    """Undo one `cover`; with the last one the client is as it was.

    A `send` that others have put on top of ours stays; ours, below it, finds no job.
    """
    with _lock:
        undo = _covered[id(http_client)].pop()
        if not _covered[id(http_client)]:
            del _covered[id(http_client)]
            undo()


def bound(client: ClientT, job: Job[Any]) -> ClientT:
    """A copy of a client, over the same connections, whose requests are turns of this job."""
    http_client: Any = job.covered_client
    twin = copy.copy(http_client)
    twin.__class__ = _lent(cast(Any, type(http_client)))
    twin._agentkv_owner = http_client
    twin.send = _tagging_one(http_client, lambda _: None if job.is_over else job)
    if client is http_client:
        return cast(ClientT, twin)
    bound_client: Any = copy.copy(client)  # no constructor is called: a subclass may have its own
    for name in [*vars(bound_client)]:
        # client.chat and the like are cached, and refer to the client they were made for
        if isinstance(getattr(type(client), name, None), functools.cached_property):
            delattr(bound_client, name)
    bound_client._client = twin
    return cast(ClientT, bound_client)


@functools.cache
def _lent(kind: Any) -> Any:
    """A kind of httpx client that leaves it to its owner to open and close the connections; the
    SDKs' own kinds close theirs when they are garbage."""
    members: dict[str, Any] = {
        "is_closed": property(lambda self: self._agentkv_owner.is_closed),
        "__del__": lambda self: None,
    }
    for close in {"close", "aclose"} & {*dir(kind)}:
        members[close] = lambda self, name=close: getattr(self._agentkv_owner, name)()
    return type(kind.__name__, (kind,), members)
