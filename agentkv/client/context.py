"""Which job is current: the one of the innermost session that a thread or task has entered.

asyncio copies the variable into new tasks by itself; Python 3.11 starts a thread with an empty
context, so sessions install patches that carry the job into threads and work for thread pools.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agentkv.client.patches import Method, Patch

# The values are jobs; `Any`, since the module of jobs is above this one.
_innermost: ContextVar[Any] = ContextVar("agentkv_job", default=None)


def innermost() -> Any:
    """The job entered last, over or not; `enclosing` leads outwards from it."""
    return _innermost.get()


def current() -> Any:
    """The innermost job that is not over; None outside of any session."""
    job = _innermost.get()
    while job is not None and job.is_over:
        job = job.enclosing
    return job


@contextmanager
def job_made_current(job: Any) -> Iterator[None]:
    """Make a job, or none, current for a block of code that runs in one thread or task."""
    token = _innermost.set(job)
    try:
        yield
    finally:
        _innermost.reset(token)


def enter(job: Any) -> None:
    """Make a job current until `leave`."""
    _innermost.set(job)


def leave() -> None:
    """Make the innermost job that is not over current again."""
    _innermost.set(current())


# Only our own variable is carried over: copying the whole context would change what other
# libraries see (decimal's precision is in there too).
def _noting_start(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        if patch.is_active:
            vars(self)["_agentkv_job"] = current()
        try:
            original(self)
        except BaseException:  # no free thread: the caller may start this one again later
            vars(self).pop("_agentkv_job", None)
            raise

    return start


def _inheriting_bootstrap(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def bootstrap(self: threading.Thread) -> None:
        _innermost.set(vars(self).pop("_agentkv_job", None))
        original(self)

    return bootstrap


def _inheriting_submit(original: Callable[..., Future[Any]], patch: Patch) -> Method:
    @functools.wraps(original)
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        job = current() if patch.is_active else None
        if job is None:
            return original(self, fn, *args, **kwargs)
        with job_made_current(None):  # the pool's thread outlives the job, serves others
            return original(self, _call_in_job, job, fn, *args, **kwargs)

    return submit


def _call_in_job(job: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with job_made_current(job):
        return fn(*args, **kwargs)


THREAD_PATCHES = (
    Patch("threading:Thread.start", _noting_start),
    Patch("threading:Thread._bootstrap_inner", _inheriting_bootstrap),
    Patch("concurrent.futures.thread:ThreadPoolExecutor.submit", _inheriting_submit),
)
"""Carry the current job into new threads and into work for thread pools."""
