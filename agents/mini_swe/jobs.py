"""Which agent job the calls of a model belong to, when it ends, and its turns.

Used by the model classes and by the agent class. Knows nothing of mini-swe-agent's classes.
"""

from __future__ import annotations

import contextvars
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import agentkv
from agentkv.client.job import Job, ToolRun
from agentkv.client.session import Session
from agentkv.protocol import MAX_ID_CHARS

_process_run_id = uuid.uuid4().hex[:8]


def job_id_of(instance_id: str, run_id: str | None) -> str:
    """Join instance and run to one job id, short enough for the wire.

    The default run id is random per process: a server that still knows the job of an earlier run
    would take the new job's turns for retries of the old one's.
    """
    suffix = f".{run_id or _process_run_id}"
    return instance_id[: MAX_ID_CHARS - len(suffix)] + suffix


class JobOfModel:
    """Finds the job for each call: the one an agent class entered, else the caller's, else its own.

    Its own job serves agents that know nothing of agentkv. It ends with the next conversation,
    with this object, or with the process. Raises TagError for an invalid job id.
    """

    def __init__(
        self, *, job_id: str | None = None, run_id: str | None = None, server: str | None = None
    ) -> None:
        self.server = server
        self._job_id = job_id
        self._run_id = run_id
        self._num_made = 0
        self._entered: Job[Any] | None = None
        self._own: Job[Any] | None = None
        agentkv.session(job_id=job_id)

    def session(self, instance_id: str = "") -> Session[None]:
        """Return a session for one run; a second run gets another job id, as its turns restart."""
        job_id = self._job_id
        if job_id is None and (instance_id or self._run_id):
            job_id = job_id_of(instance_id or uuid.uuid4().hex[:12], self._run_id)
        if job_id is not None and self._num_made:
            job_id = job_id_of(job_id, str(self._num_made + 1))
        self._num_made += 1
        return agentkv.session(job_id=job_id, server=self.server)

    @property
    def is_entered(self) -> bool:
        """True between `enter` and `leave`, while an agent class decides when the job ends."""
        return self._entered is not None

    def enter(self, job: Job[Any]) -> None:
        """Assign all calls to this job until `leave`."""
        self.end_own()
        self._entered = job

    def leave(self) -> None:
        """End what `enter` began."""
        self._entered = None

    def current(self) -> Job[Any]:
        """Return the job that a call made now belongs to."""
        if self._entered is not None:
            return self._entered
        if self._own is None:
            outer = agentkv.current_job()
            if outer is not None and self._job_id is None:
                return outer
            session = self.session()
            # Entered in a context of its own: a worker thread goes on to other instances.
            self._own = contextvars.copy_context().run(session.__enter__)
            self._end_own = weakref.finalize(self, _end, session, self._own)
        return self._own

    def end_own(self) -> None:
        """Release the model's own job; the next call begins another one."""
        if self._own is not None:
            self._own = None
            self._end_own()


def _end(session: Session[None], job: Job[Any]) -> None:
    """Release a job that is current in no context."""
    if not job.is_over:
        contextvars.copy_context().run(session.__exit__, None, None, None)


SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output begins with this line ends the job.
Source: minisweagent/environments/local.py, LocalEnvironment._check_finished (2.4.6)."""


class TurnLog:
    """Times the turns of one agent loop, and reports its tools to the job; for one thread.

    The model class drives it: `query` around each call, `begin_tool` and `end_tool` around the
    commands of the reply. `rows` has a JSON object for each reply; None stands for tokens that were
    not reported, and for a reply without a command.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._tokens: dict[str, int | None] | None = None
        self._tool: ToolRun | None = None
        self._num_calls_left: int | None = None

    def limit_calls(self, step_limit: int, num_calls: int) -> None:
        """Set the loop's limit on calls, of which `num_calls` are made; 0 is no limit."""
        self._num_calls_left = step_limit - num_calls if step_limit > 0 else None

    @contextmanager
    def query(self, job: Job[Any]) -> Iterator[None]:
        """Time one call of the model, retries included; a malformed reply counts as a turn too."""
        self.end_tool()
        if self._num_calls_left is not None:
            if self._num_calls_left == 1:
                job.last_step()
            self._num_calls_left -= 1
        self._tokens = None
        started_at_s = time.monotonic()
        try:
            yield
        finally:
            if self._tokens is not None:
                row = {"turn": len(self.rows) + 1, "llm_s": time.monotonic() - started_at_s}
                self.rows.append({**row, "tool_s": 0.0, **self._tokens, "command": None})

    def note_reply(self, reply: Any) -> None:
        """Record the tokens of litellm's reply to the current query."""
        usage = getattr(reply, "usage", None)
        details = getattr(usage, "prompt_tokens_details", None)
        self._tokens = {
            "prompt_tokens": getattr(usage, "prompt_tokens", None),
            "cached_tokens": getattr(details, "cached_tokens", None),
            "output_tokens": getattr(usage, "completion_tokens", None),
        }

    def begin_tool(self, job: Job[Any], commands: Sequence[str]) -> None:
        """Start the tool of the last reply; a submission releases the job."""
        if not commands or not self.rows:
            return
        command = "\n".join(commands)
        self.rows[-1]["command"] = command
        self._tool = job.tool(command).__enter__()
        if SUBMIT_MARKER in command:
            # Only a hint: if the submission fails, the next turn pins as usual.
            job.release()

    def end_tool(self) -> None:
        """End the running tool, if there is one."""
        tool, self._tool = self._tool, None
        if tool is not None:
            tool.__exit__(None, None, None)
            self.rows[-1]["tool_s"] = tool.duration_s or 0.0
