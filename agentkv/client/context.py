"""Which job is current: the one of the innermost session that a thread or task has entered.

Sessions enter and leave jobs here, and `job` looks up whose turn a call is. asyncio copies the
variable into new tasks by itself; Python 3.11 starts a thread with an empty context, so sessions
install patches that carry the job into threads and work for thread pools. Knows nothing of a job
but whether it is over and which job encloses it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from agentkv.client.patches import Method, Patch


class NestedJob(Protocol):
    """A job as this module sees it."""

    @property
    def is_over(self) -> bool: ...

    @property
    def enclosing(self) -> NestedJob | None: ...


_innermost: ContextVar[NestedJob | None] = ContextVar("agentkv_job", default=None)


def innermost() -> NestedJob | None:
    """The job entered last, over or not; `enclosing` leads outwards from it."""
    return _innermost.get()


def current() -> NestedJob | None:
    """The innermost job that is not over; None outside of any session."""
    job = _innermost.get()
    while job is not None and job.is_over:
        job = job.enclosing
    return job


@contextmanager
def job_made_current(job: NestedJob | None) -> Iterator[None]:
    """Make a job current for a block of code that runs in one thread or task."""
    token = _innermost.set(job)
    try:
        yield
    finally:
        _innermost.reset(token)


def enter(job: NestedJob) -> None:
    """Make a job current until `leave`."""
    _innermost.set(job)


def leave() -> None:
    """Make the innermost job that is not over current again."""
    _innermost.set(current())


# Only our own variable is carried over: copying the whole context would change what other
# libraries see (decimal's precision is in there too).
def _inheriting_start(original: Method, patch: Patch) -> Method:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        job = current() if patch.is_active else None
        if job is None or self.ident is not None:
            original(self)
            return
        own_run = vars(self).get("run")
        vars(self)["run"] = functools.partial(_run_in_job, self, own_run, job)
        try:
            original(self)
        except BaseException:  # no free thread: the caller may start this one again later
            _restore_run(self, own_run)
            raise

    return start


def _run_in_job(
    thread: threading.Thread, own_run: Callable[[], None] | None, job: NestedJob
) -> None:
    _restore_run(thread, own_run)  # ours refers to the thread: a cycle would keep both alive
    with job_made_current(job):
        thread.run()


def _restore_run(thread: threading.Thread, own_run: Callable[[], None] | None) -> None:
    """Give a thread its own run method back, or that of its class."""
    if own_run is None:
        vars(thread).pop("run", None)
    else:
        vars(thread)["run"] = own_run


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


def _call_in_job(job: NestedJob, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with job_made_current(job):
        return fn(*args, **kwargs)


THREAD_PATCHES = (
    Patch("threading:Thread.start", _inheriting_start),
    Patch("concurrent.futures.thread:ThreadPoolExecutor.submit", _inheriting_submit),
)
"""Carry the current job into new threads and into work for thread pools."""
