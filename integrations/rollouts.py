"""Makes the trajectories of a trainer jobs, where it sends tokens to engines in other processes.

`verl` and `skyrl` say which functions of theirs run a trajectory and ask for tokens. The tags of a
turn ride in the `extra_args` of its sampling parameters. A failure of ours is logged once, and the
trainer goes on.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from agentkv.client import context
from agentkv.client.job import Job, job_covering
from agentkv.client.patches import Method, Patch
from agentkv.client.replies import Usage
from agentkv.client.server import JobLink
from agentkv.client.tagged_call import TaggedCall, log_failure
from agentkv.protocol import parse_tags
from agentkv.tracing import open_trace


def open_job(job_id: str, *, has_headers: bool) -> Job[None]:
    """A job for a trajectory; TagError for a wrong id."""
    parse_tags({"job_id": job_id})
    job: Job[None] = Job(
        job_id,
        covered_client=None,
        has_headers=has_headers,
        # the trainer's own configuration chooses the policy: no server has ours by mistake
        on_missing_server="ignore",
    )
    job.trace = open_trace(job_id, None)
    return job


def end_job(job: Job[None]) -> None:
    """Release a job of `open_job`."""
    if job.trace is not None:
        job.trace.end(None, job.summary())
    job.end()


class Trajectory:
    """The jobs of one trajectory, by the ids under which it asks for tokens: mostly one."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job[None]] = {}

    def has(self, job: Job[Any]) -> bool:
        return self._jobs.get(job.job_id) is job

    def job(self, job_id: str) -> Job[None]:
        """The job with this id, which is the current one from now on; TagError for a wrong id."""
        job = self._jobs.get(job_id)
        if job is None:
            job = self._jobs[job_id] = open_job(job_id, has_headers=False)
        context.enter(job)
        return job

    def end(self) -> None:
        """Release all jobs; a second call does nothing."""
        while self._jobs:
            end_job(self._jobs.popitem()[1])


_trajectory: ContextVar[Trajectory | None] = ContextVar("agentkv_trajectory", default=None)


@contextmanager
def trajectory() -> Iterator[None]:
    """A block of code is a trajectory, or a part of the one that it is in."""
    if _trajectory.get() is not None:
        yield
        return
    found = Trajectory()
    token = _trajectory.set(found)
    try:
        yield
    finally:
        _trajectory.reset(token)
        _end(found)


def _end(found: Trajectory | None) -> None:
    try:
        if found is not None:
            found.end()
    except Exception:
        log_failure("could not end a trajectory")


def a_trajectory(original: Method, patch: Patch) -> Method:
    """Each call of a coroutine function is a trajectory."""

    @functools.wraps(original)
    async def run(*args: Any, **kwargs: Any) -> Any:
        if not patch.is_active:
            return await original(*args, **kwargs)
        with trajectory():
            return await original(*args, **kwargs)

    return run


def after_a_trajectory(original: Method, patch: Patch) -> Method:
    """A call of a coroutine function means that its trajectory generates no more."""

    @functools.wraps(original)
    async def run(*args: Any, **kwargs: Any) -> Any:
        if patch.is_active:
            _end(_trajectory.get())
        return await original(*args, **kwargs)

    return run


def job_of(job_id: str, client: object) -> Job[Any] | None:
    """The job of a prompt: that of a session of the user's own, else one of this trajectory."""
    own, around = job_covering(client), _trajectory.get()
    if own is not None and (around is None or not around.has(own)):
        return own
    return None if around is None else around.job(job_id)


class _TokensCall(TaggedCall):
    """A prompt whose sampling parameters are a mapping, on its way to an engine."""

    def __init__(self, job: Job[Any], link: JobLink, params: dict[str, Any]) -> None:
        super().__init__(job, link)
        self._params = params

    def describe(self) -> tuple[str, str | None]:
        return "text_completion", None

    def tag(self) -> None:
        self._params["extra_args"] = self.extra_args(self._params.get("extra_args"))


class TokensTurn:
    """One prompt of a trajectory, as a context manager around the call that generates its tokens.

    `params` is a copy of its sampling parameters, which get the tags with `open`. `job` is None if
    it is no turn: outside of any trajectory, or tagged by hand.
    """

    def __init__(self, job_id: object, client: object, params: Mapping[str, Any]) -> None:
        self.params = dict(params)
        self.job: Job[Any] | None = None
        self._call: _TokensCall | None = None
        try:
            if not {"job_id", "session_id"} & {*(params.get("extra_args") or ())}:
                self.job = job_of(str(job_id), client)
        except Exception:
            log_failure("could not find the job of a prompt, which goes out untouched")

    async def open(self, link_of: Callable[[Job[Any]], JobLink]) -> None:
        """Tag the prompt for the engine that it goes to, if that has the plugin."""
        assert self.job is not None
        try:
            link = link_of(self.job)
            call = _TokensCall(self.job, link, self.params)
            if call.must_ask:
                await link.server.ask_async(link.transport)
            if self._call is None and link.server.has_plugin:
                call.begin()
                call.end_sending()  # nothing below it is a request of its own
                self._call = call
        except Exception:
            log_failure("could not tag a prompt, which goes out untouched")

    def __enter__(self) -> TokensTurn:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(lambda call: call.close_unanswered(error or "aborted"))

    def took(self, read: Callable[[], tuple[Usage, bool]]) -> None:
        """Note the tokens that came: `read` gives them, and whether the turn was aborted.

        An aborted turn comes back under the same number.
        """
        try:
            usage, is_aborted = read()
        except Exception:
            log_failure("could not read the tokens of a turn")
            return
        if not is_aborted:
            self._close(lambda call: call.close(usage, time.monotonic()))

    def _close(self, close: Callable[[_TokensCall], None]) -> None:
        call, self._call = self._call, None
        try:
            if call is not None:
                close(call)
        except Exception:
            log_failure("could not close a turn")
