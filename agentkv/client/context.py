"""Which job a request belongs to: by the thread or task it is made in, and by its client.

A session makes its job current. asyncio copies the variable into new tasks by itself; Python 3.11
starts a thread with an empty context, so sessions carry the job into threads and work for pools.
A session with a client has the requests of that one httpx client tagged while it is open, and
`job.client` is bound to its job for good; a session without one patches the classes of httpx.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from agentkv.client.job import Job
from agentkv.client.patches import Method, Patch, Replacement
from agentkv.client.tagger import FindJob, tagging

ClientT = TypeVar("ClientT")

_innermost: ContextVar[Job[Any] | None] = ContextVar("agentkv_job", default=None)
"""The job entered last, over or not; `enclosing` leads outwards from it."""


def current_job() -> Job[Any] | None:
    """The job of the innermost session that this thread or task is in; None outside of any."""
    job = _innermost.get()
    while job is not None and job.is_over:
        job = job.enclosing
    return job


def job_covering(client: object) -> Job[Any] | None:
    """The innermost live job whose session covers this httpx client, or was entered without one."""
    job = _innermost.get()
    while job is not None and (job.is_over or job.covered_client not in (None, client)):
        job = job.enclosing
    return job


def innermost_of(jobs: list[Job[Any]]) -> Job[Any] | None:
    """The innermost of these jobs that this thread or task has entered; None if it has none."""
    job = _innermost.get()
    while job is not None and job not in jobs:
        job = job.enclosing
    return job


def enter(job: Job[Any]) -> None:
    """Make a job current until `leave`."""
    _innermost.set(job)


def leave() -> None:
    """Make the innermost job that is not over current again."""
    _innermost.set(current_job())


@contextmanager
def job_made_current(job: Job[Any] | None) -> Iterator[None]:
    """Make a job, or none, current for a block of code that runs in one thread or task."""
    token = _innermost.set(job)
    try:
        yield
    finally:
        _innermost.reset(token)


# Threads. Only our own variable is carried over: copying the whole context would change what other
# libraries see (decimal's precision is in there too).


def _inheriting_start(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        job = current_job() if patch.is_active else None
        if job is None or "_bootstrap_inner" in vars(self):
            original(self)
            return
        # the first method that the thread calls: `run` may be the user's own
        vars(self)["_bootstrap_inner"] = functools.partial(_run_in_job, self, job)
        try:
            original(self)
        except BaseException:  # no free thread: the caller may start this one again later
            vars(self).pop("_bootstrap_inner", None)
            raise

    return start


def _run_in_job(thread: Any, job: Job[Any]) -> None:
    vars(thread).pop("_bootstrap_inner", None)
    enter(job)
    thread._bootstrap_inner()


def _inheriting_submit(original: Callable[..., Future[Any]], patch: Patch) -> Method:
    @functools.wraps(original)
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        job = current_job() if patch.is_active else None
        if job is None:
            return original(self, fn, *args, **kwargs)
        with job_made_current(None):  # the pool's thread outlives the job, serves others
            return original(self, _call_in_job, job, fn, *args, **kwargs)

    return submit


def _call_in_job(job: Job[Any], fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with job_made_current(job):
        return fn(*args, **kwargs)


THREAD_PATCHES = (
    Patch("threading:Thread.start", _inheriting_start),
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
    if isinstance(client, type):
        raise TypeError(
            f"session(client): got the class {client.__name__}, allowed is a client made of it: "
            f"session({client.__name__}(...))"
        )
    for candidate in (client, getattr(client, "_client", None)):
        for library in filter(None, map(sys.modules.get, HTTP_LIBRARIES)):
            if isinstance(candidate, (library.Client, library.AsyncClient)):
                return candidate
    raise TypeError(
        f"session(client): got {type(client).__name__}, allowed is an OpenAI or Anthropic client, "
        "or one of httpx (or none: then all of them are covered; other libraries send job.headers)"
    )


def _tagging_one(http_client: Any, find_job: FindJob) -> Method:
    """The `send` of one httpx client, perhaps replaced by others, with its requests tagged."""
    send, is_async = http_client.send, hasattr(http_client, "aclose")
    tagged_send = tagging(
        lambda _, *args, **options: send(*args, **options), find_job, is_async=is_async
    )
    return functools.partial(tagged_send, http_client)


_lock = threading.Lock()
_covered: dict[int, tuple[Replacement, int]] = {}
"""The replaced `send` of each covered httpx client, by its id, and its number of sessions."""


def cover(http_client: Any) -> None:
    """Make the requests of one httpx client turns until `uncover`."""
    with _lock:
        replacement, num_sessions = _covered.get(id(http_client), (None, 0))
        if replacement is None:
            tagged_send = _tagging_one(http_client, job_covering)
            replacement = Replacement(http_client, "send", tagged_send)
        _covered[id(http_client)] = replacement, num_sessions + 1


def uncover(http_client: Any) -> None:
    """Undo one `cover`; with the last one the client is as it was.

    A `send` that others have put on top of ours stays; ours, below it, finds no job.
    """
    with _lock:
        replacement, num_sessions = _covered.pop(id(http_client))
        if num_sessions > 1:
            _covered[id(http_client)] = replacement, num_sessions - 1
        else:
            replacement.undo()


def bound(client: ClientT, job: Job[Any]) -> ClientT:
    """A copy of a client, over the same connections, whose requests are turns of this job."""
    http_client: Any = job.covered_client
    twin = _copy_of(http_client, _lent(cast(Any, type(http_client))))
    vars(twin)["_agentkv_owner"] = http_client
    vars(twin)["send"] = _tagging_one(http_client, lambda _: None if job.is_over else job)
    if client is http_client:
        return cast(ClientT, twin)
    copy = _copy_of(client, type(client))
    vars(copy)["_client"] = twin
    return cast(ClientT, copy)


def _copy_of(client: Any, kind: Any) -> Any:
    """A copy made without calling a constructor."""
    twin = kind.__new__(kind)
    for name, value in vars(client).items():
        # client.chat and the like are cached, and refer to the client they were made for
        if not isinstance(getattr(type(client), name, None), functools.cached_property):
            vars(twin)[name] = value
    return twin


@functools.cache
def _lent(kind: Any) -> Any:
    """A kind of httpx client that leaves it to its owner to open and close the connections; the
    SDKs' own kinds close theirs when they are garbage."""
    members: dict[str, Any] = {
        "is_closed": property(lambda self: self._agentkv_owner.is_closed),
        "__del__": lambda self: None,
    }
    for close in ("close", "aclose"):
        if hasattr(kind, close):
            members[close] = lambda self, name=close: getattr(self._agentkv_owner, name)()
    return type(kind.__name__, (kind,), members)
