"""Carries the current job into new threads and into work for thread pools; sessions install it.

Python 3.11 starts a thread with an empty context. Only our own variable is carried over: copying
the whole context would change what other libraries see (decimal's precision is in there too).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from agentkv.client import context

Method = Callable[..., Any]


class MethodPatch:
    """Replaces one method of somebody else's class by `wrap(original, patch)`, once at a time.

    If other code has replaced the method on top of ours, it cannot be restored. The replacement
    then stays below theirs, so it must pass every call on to the original unless `is_active`.
    """

    def __init__(
        self, owner: type, name: str, wrap: Callable[[Method, MethodPatch], Method]
    ) -> None:
        self.is_active = False
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._lock = threading.Lock()
        self._original: Method | None = None
        self._replacement: Method | None = None

    def install(self) -> None:
        """Replace the method, unless it is replaced already."""
        with self._lock:
            self.is_active = True
            if self._replacement is None:
                self._original = getattr(self._owner, self._name)
                self._replacement = self._wrap(self._original, self)
                setattr(self._owner, self._name, self._replacement)

    def remove(self) -> None:
        """Restore the original, or deactivate the replacement where that is not possible."""
        with self._lock:
            self.is_active = False
            if getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)
                self._original = self._replacement = None


def _inheriting_start(original: Method, patch: MethodPatch) -> Method:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        job = context.current() if patch.is_active else None
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
    thread: threading.Thread, own_run: Callable[[], None] | None, job: context.NestedJob
) -> None:
    _restore_run(thread, own_run)  # ours refers to the thread: a cycle would keep both alive
    with context.job_made_current(job):
        thread.run()


def _restore_run(thread: threading.Thread, own_run: Callable[[], None] | None) -> None:
    """Give a thread its own run method back, or that of its class."""
    if own_run is None:
        vars(thread).pop("run", None)
    else:
        vars(thread)["run"] = own_run


def _inheriting_submit(original: Callable[..., Future[Any]], patch: MethodPatch) -> Method:
    @functools.wraps(original)
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        job = context.current() if patch.is_active else None
        if job is None:
            return original(self, fn, *args, **kwargs)
        with context.job_made_current(None):  # the pool's thread outlives the job, serves others
            return original(self, _call_in_job, job, fn, *args, **kwargs)

    return submit


def _call_in_job(
    job: context.NestedJob, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    with context.job_made_current(job):
        return fn(*args, **kwargs)


THREAD_PATCHES = (
    MethodPatch(threading.Thread, "start", _inheriting_start),
    MethodPatch(ThreadPoolExecutor, "submit", _inheriting_submit),
)
