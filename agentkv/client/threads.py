"""Lets threads, and work handed to thread pools, start out in the job that is current.

Python 3.11's threads begin with an empty context. Only our own variable is carried over: copying
the whole context would change what other libraries see (decimal's precision is in there too).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from agentkv.client.context import current_job, job_made_current

if TYPE_CHECKING:
    from agentkv.client.job import Job


Method = Callable[..., Any]


class MethodPatch:
    """One method replaced by `wrap(original, patch)`, at most once at a time.

    When somebody else has replaced the method on top of us it cannot be put back. The replacement
    then stays beneath theirs, so it must hand every call to the original unless `is_active`.
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
        """Replace the method, unless that is done already."""
        with self._lock:
            self.is_active = True
            if self._replacement is None:
                self._original = getattr(self._owner, self._name)
                self._replacement = self._wrap(self._original, self)
                setattr(self._owner, self._name, self._replacement)

    def remove(self) -> None:
        """Put the original back, or fall silent where that is no longer possible."""
        with self._lock:
            self.is_active = False
            if getattr(self._owner, self._name) is self._replacement:
                setattr(self._owner, self._name, self._original)
                self._original = self._replacement = None


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
