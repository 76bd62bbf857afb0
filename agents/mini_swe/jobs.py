"""Which agent job the calls of a model belong to, and when that job is over."""

from __future__ import annotations

import atexit
import contextvars
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

import agentkv
from agentkv.client.context import job_made_current
from agentkv.client.job import Job, ToolRun
from agentkv.client.replies import Usage
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


# MERGED: The turns of one agent loop: how long each reply and each command took, and its
# MERGED: tokens.
# MERGED: Also what a job is told between two replies: the command that starts and ends, the
# MERGED: last step, and
# MERGED: the release of a job that is about to submit. Knows nothing of mini-swe-agent's
# MERGED: classes.

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output begins with this line ends the job.
Source: minisweagent/environments/local.py, LocalEnvironment._check_finished (2.4.6)."""


@dataclass(slots=True)
class Turn:
    """One reply and what it had run; None is what the server did not tell, or nothing to run."""

    turn: int
    llm_s: float
    tool_s: float = 0.0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    command: str | None = None


class TurnLog:
    """Watches a loop from the inside of its model; for one loop, in one thread, at a time."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: list[Turn] = []
        self._reply: Usage | None = None
        self._tool: ToolRun | None = None
        self._num_calls_left: int | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The turns so far, ready for JSON."""
        return [asdict(turn) for turn in self._turns]

    @property
    def num_turns(self) -> int:
        """Replies so far."""
        return len(self._turns)

    def limit_calls(self, step_limit: int, num_calls: int) -> None:
        """The loop ends after `step_limit` calls, of which it has made `num_calls`; 0 is no limit.

        Calls made after this are counted here.
        """
        self._num_calls_left = step_limit - num_calls if step_limit > 0 else None

    @contextmanager
    def query(self, job: Job[Any]) -> Iterator[None]:
        """Times a call of the model with its retries; a reply in the wrong format is a turn too."""
        self.end_tool()
        if self._num_calls_left is not None:
            if self._num_calls_left == 1:
                job.last_step()
            self._num_calls_left -= 1
        self._reply = None
        started_at_s = self._clock()
        try:
            yield
        finally:
            if self._reply is not None:
                self._turns.append(self._turn(self._reply, self._clock() - started_at_s))

    def note_reply(self, usage: Usage | None) -> None:
        """A reply came in, with these tokens."""
        self._reply = usage or Usage()

    def begin_tool(self, job: Job[Any], commands: Sequence[str]) -> None:
        """The loop is about to run the commands of the last reply."""
        if not commands or not self._turns:
            return
        command = "\n".join(commands)
        self._turns[-1].command = command
        self._tool = job.tool(command).__enter__()
        if SUBMIT_MARKER in command:
            # Only a hint: if the submission fails, the next turn is one like any other.
            job.release()

    def end_tool(self) -> None:
        """The commands are done, or the loop gave up on them; without any, nothing happens."""
        tool, self._tool = self._tool, None
        if tool is not None:
            tool.__exit__(None, None, None)
            self._turns[-1].tool_s = tool.duration_s or 0.0

    def _turn(self, usage: Usage, llm_s: float) -> Turn:
        return Turn(
            turn=len(self._turns) + 1,
            llm_s=llm_s,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )
