"""Which job is current here: for the thread or task that entered a session, and those it starts.

A context variable, which asyncio hands to new tasks by itself. Threads are seen to in `threads.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentkv.client.job import Job

_innermost: ContextVar[Job[Any] | None] = ContextVar("agentkv_job", default=None)


def current_job() -> Job[Any] | None:
    """The job of the innermost session that this thread or task is in; None outside of any."""
    job = _innermost.get()
    while job is not None and job.is_over:
        job = job.enclosing
    return job


@contextmanager
def job_made_current(job: Job[Any] | None) -> Iterator[None]:
    """Make a job current for a block of code that runs in one thread or task."""
    token = _innermost.set(job)
    try:
        yield
    finally:
        _innermost.reset(token)


def enter(job: Job[Any]) -> None:
    """Make a job current until `leave`."""
    _innermost.set(job)


def leave() -> None:
    """Make the innermost job that is not over current again."""
    _innermost.set(current_job())


def chain() -> Iterator[Job[Any]]:
    """The jobs current here, over or not, from the innermost outwards."""
    job = _innermost.get()
    while job is not None:
        yield job
        job = job.enclosing
