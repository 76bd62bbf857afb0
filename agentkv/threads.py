"""Lets threads, and work handed to thread pools, start out in the job of whoever started them.

Python 3.11's threads begin with an empty context. Only our own variable is carried over: copying
the whole context would change what other libraries see (decimal's precision is in there too).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agentkv.current import current_job, job_made_current
from agentkv.patches import MethodPatch

if TYPE_CHECKING:
    from agentkv.job import Job


def _inheriting_start(original: Callable[..., None], patch: MethodPatch) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        job = current_job() if patch.is_active else None
        if job is None or self.ident is not None:
            original(self)
            return
        own_run = vars(self).get("run")
        vars(self)["run"] = functools.partial(_run_in_job, self, own_run, job)
        try:
            original(self)
        except BaseException:  # no free thread: the caller may start this one again later
            _put_back(self, own_run)
            raise

    return start


def _run_in_job(
    thread: threading.Thread, own_run: Callable[[], None] | None, job: Job[Any]
) -> None:
    _put_back(thread, own_run)  # ours refers to the thread: the two would keep each other alive
    with job_made_current(job):
        thread.run()


def _put_back(thread: threading.Thread, own_run: Callable[[], None] | None) -> None:
    """Give a thread the run method back that it had, or that of its class."""
    if own_run is None:
        vars(thread).pop("run", None)
    else:
        vars(thread)["run"] = own_run


def _inheriting_submit(
    original: Callable[..., Future[Any]], patch: MethodPatch
) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        job = current_job() if patch.is_active else None
        if job is None:
            return original(self, fn, *args, **kwargs)
        with job_made_current(None):  # a thread of the pool outlives the job and serves others
            return original(self, _call_in_job, job, fn, *args, **kwargs)

    return submit


def _call_in_job(job: Job[Any], fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with job_made_current(job):
        return fn(*args, **kwargs)


THREAD_PATCHES = (
    MethodPatch(threading.Thread, "start", _inheriting_start),
    MethodPatch(ThreadPoolExecutor, "submit", _inheriting_submit),
)
