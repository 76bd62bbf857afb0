"""Which agent job the calls of a model belong to, and when that job is over."""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import uuid
import weakref
from queue import SimpleQueue
from typing import Any

import agentkv
from agentkv.client.context import job_made_current
from agentkv.client.job import Job
from agentkv.client.session import Session
from agentkv.protocol import MAX_ID_CHARS

_process_run_id = uuid.uuid4().hex[:8]


def job_id_of(instance_id: str, run_id: str | None) -> str:
    """Instance and run in one id, short enough for the wire.

    Without a run id one is made up for this process: a server that still knows the job of an
    earlier run would take the new job's turns for retries of the old one's.
    """
    suffix = f".{run_id or _process_run_id}"
    return instance_id[: MAX_ID_CHARS - len(suffix)] + suffix


class JobOfModel:
    """Finds the job for each call: the one an agent class entered, else the caller's, else its own.

    Its own job is for agents that know nothing of agentkv. It ends with the next conversation,
    with this object, or with the process. Raises TagError for a job id that no server would take.
    """

    def __init__(
        self, *, job_id: str | None = None, run_id: str | None = None, server: str | None = None
    ) -> None:
        self.server = server
        self._job_id = job_id
        self._run_id = run_id
        self._num_made = 0
        self._entered: Job[Any] | None = None
        self._own: _OwnJob | None = None
        agentkv.session(job_id=job_id)

    def session(self, instance_id: str = "") -> Session[None]:
        """A session for one run; a further run is another job, since its turns start anew."""
        job_id = self._job_id
        if job_id is None and (instance_id or self._run_id):
            job_id = job_id_of(instance_id or uuid.uuid4().hex[:12], self._run_id)
        if job_id is not None and self._num_made:
            job_id = job_id_of(job_id, str(self._num_made + 1))
        self._num_made += 1
        return agentkv.session(job_id=job_id, server=self.server)

    @property
    def is_entered(self) -> bool:
        """True while an agent class says which job it is, and when that is over."""
        return self._entered is not None

    def enter(self, job: Job[Any]) -> None:
        """All calls belong to this job until `leave`."""
        self.end_own()
        self._entered = job

    def leave(self) -> None:
        """The job that was entered is over."""
        self._entered = None

    def current(self) -> Job[Any]:
        """The job that a call made now belongs to."""
        if self._entered is not None:
            return self._entered
        if self._own is None:
            outer = agentkv.current_job()
            if outer is not None and self._job_id is None:
                return outer
            self._own = _OwnJob(self.session())
            weakref.finalize(self, _dropped.put, self._own).atexit = False
        return self._own.job

    def end_own(self) -> None:
        """The conversation is over; the next call begins another job."""
        if self._own is not None:
            self._own.end()
            self._own = None


class _OwnJob:
    """A job that is current nowhere, and lasts until somebody ends it."""

    def __init__(self, session: Session[None]) -> None:
        self._session = session
        # Entered in a context of its own: a worker thread goes on to other instances.
        self.job = contextvars.copy_context().run(session.__enter__)
        _watch_over_own_jobs()
        _live.add(self)

    def end(self) -> None:
        """Release the job; a second call, also in another thread, does nothing."""
        try:
            _live.remove(self)
        except KeyError:
            return
        if not self.job.is_over:
            contextvars.copy_context().run(self._session.__exit__, None, None, None)


_live: set[_OwnJob] = set()
_watched_in: set[int] = set()  # by process id: a forked child has no thread of ours

# What is dropped is ended by a thread: the garbage collector may come in the middle of anything,
# also while the queue of releases is locked. Putting into this queue is safe even then.
_dropped: SimpleQueue[_OwnJob] = SimpleQueue()


def _watch_over_own_jobs() -> None:
    """See to jobs that end without a word, with their model or with the process."""
    if os.getpid() not in _watched_in:
        _watched_in.add(os.getpid())
        atexit.register(_end_all)
        with job_made_current(None):  # or the thread would keep the caller's job alive
            threading.Thread(target=_end_dropped, name="agentkv-dropped", daemon=True).start()


def _end_dropped() -> None:
    while True:
        _dropped.get().end()


def _end_all() -> None:
    """Release what is left when the interpreter goes: nobody else will."""
    for own in list(_live):
        own.end()
    agentkv.flush()
