"""Which job is current: the one of the innermost session that a thread or task has entered.

Sessions enter and leave jobs here, `threads` carries the current job into new threads, and
`openai_sdk` looks up whose turn a call is; asyncio copies the variable into new tasks by itself.
Knows nothing of a job but whether it is over and which job encloses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


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
