"""`agentkv.session()`: marks a block of code as one agent job.

Users enter it; it makes the job, makes it current, has its requests tagged, and ends it.
"""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable
from contextlib import AsyncContextDecorator, ContextDecorator
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast, get_args
from weakref import WeakSet

from agentkv.client import context, delivery
from agentkv.client.job import Job
from agentkv.client.server import Route, server_at
from agentkv.protocol import parse_affinity, parse_tags
from agentkv.tracing import open_trace

if TYPE_CHECKING:
    import typing_extensions

    ClientT = typing_extensions.TypeVar("ClientT", default=None)
else:
    ClientT = TypeVar("ClientT")
F = TypeVar("F", bound=Callable[..., Any])

OnMissingServer = Literal["warn", "raise", "ignore"]

_open_jobs: WeakSet[Job[Any]] = WeakSet()
"""Jobs whose session was never left, for example in a generator that was dropped half-way."""


class Session(Generic[ClientT]):
    """One agent job: `with session() as job`, `async with`, or a decorator (a job per call).

        with agentkv.session(client, job_id="django-11451") as job:
            reply = job.client.chat.completions.create(model=model, messages=messages)

    client: a client of the OpenAI or Anthropic SDK, or of httpx, sync or async. Requests to models
        over its connections are turns of the job inside of the block; those of `job.client`, the
        same client bound to the job, also in any other thread or task. Nothing else is touched but
        threads, which inherit the job. Without a client, all clients of httpx are covered, until
        `agentkv.uninstrument()`. Other libraries send `job.headers`.
    job_id: 1 to 256 characters; by default a new one for each job.
    parent_job_id: the job that spawned this one; by default that of the enclosing session.
    expected_turns: a hint. `job.limit_turns(n)` is a promise, `job.last_step()` the certain end.
    server: URL of the vLLM server if it is not the client's base URL (a gateway in between), or if
        requests go by `job.headers`; it gets the client's key. Clients that the session was not
        given report to their own addresses.
    on_missing_server: what to do about a server without the plugin, which passes over the headers.
        "warn" says so once, as the first report finds out, "ignore" does not, "raise" raises
        AgentKVServerError: on entry if the server is known by then, else from the first request,
        as the cause of an SDK's connection error.
    affinity: the id of another job, such as a parent with the same prefix: routers by our recipes
        send this job to its server. Without it a router places each job by itself.

    Leaving it, also by an exception, releases the job on the server, in the background. Raises
    TagError for an id or number out of range, TypeError for a wrong client, ValueError for another
    wrong argument.
    """

    def __init__(
        self,
        client: ClientT = None,  # type: ignore[assignment]  # the default of ClientT
        *,
        job_id: str | None = None,
        parent_job_id: str | None = None,
        expected_turns: int | None = None,
        server: object = None,
        on_missing_server: OnMissingServer = "warn",
        affinity: str | None = None,
    ) -> None:
        if on_missing_server not in get_args(OnMissingServer):
            allowed = ", ".join(map(repr, get_args(OnMissingServer)))
            raise ValueError(f"on_missing_server: got {on_missing_server!r}, allowed is {allowed}")
        parse_tags(
            {"job_id": job_id, "parent_job_id": parent_job_id, "expected_turns": expected_turns}
        )
        self._client = client
        self._job_id = job_id
        self._parent_job_id = parent_job_id
        self._of_each_job: dict[str, Any] = {
            "covered_client": None if client is None else context.http_client_of(client),
            "server_url": None if server is None else str(server),
            "on_missing_server": on_missing_server,
            "expected_turns": expected_turns,
            "affinity": parse_affinity(affinity),
        }
        self._entered: list[Job[Any]] = []

    def __enter__(self) -> Job[ClientT]:
        job, route = self._new_job()
        if route is not None and job.on_missing_server == "raise":
            route.require_plugin()
        return self._enter(job)

    async def __aenter__(self) -> Job[ClientT]:
        job, route = self._new_job()
        if route is not None and job.on_missing_server == "raise":
            await route.require_plugin_async()
        return self._enter(job)

    def __exit__(self, *exc_info: object) -> None:
        # none of ours if it is left in another context than entered in, as by an async generator
        job = context.innermost.get()
        if job not in self._entered:
            job = self._entered[-1]
        self._entered.remove(job)
        _open_jobs.discard(job)
        job.end(exc_info[1] if exc_info else None)
        context.innermost.set(context.current_job())
        if job.covered_client is not None:
            context.uncover(job.covered_client)

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def __call__(self, function: F) -> F:
        """Make each call of a function, sync or async, another job."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"session() cannot decorate the generator {function.__qualname__}: its body runs "
                "in pieces, inside of the code that iterates it; use `with` in its body instead"
            )
        is_async = inspect.iscoroutinefunction(function)
        decorator: Any = AsyncContextDecorator if is_async else ContextDecorator
        return cast(F, decorator.__call__(self, function))

    def _recreate_cm(self) -> Self:  # what those decorators enter for each call
        return self

    def _new_job(self) -> tuple[Job[ClientT], Route | None]:
        """Another job, and its way to its server if that is known by now."""
        enclosing = context.current_job()
        job_id, parent_job_id = self._job_id or uuid.uuid4().hex, self._parent_job_id
        if parent_job_id is None and enclosing is not None and enclosing.job_id != job_id:
            parent_job_id = enclosing.job_id
        job: Job[ClientT] = Job(job_id, parent_job_id, enclosing, **self._of_each_job)
        client: Any = self._client
        url = job.server_url or str(getattr(client, "base_url", ""))
        # a key that the SDK asks somebody for comes with the first request
        if not url or getattr(client, "_api_key_provider", None) is not None:
            return job, None
        headers = getattr(client, "default_headers", None) or getattr(client, "headers", None)
        route = Route(job, server_at(url), job.covered_client, headers or {})
        if job.server_url is not None:
            job.listeners[route.server] = route.tell
        return job, route

    def _enter(self, job: Job[ClientT]) -> Job[ClientT]:
        if job.covered_client is None:
            instrument()
        else:
            job.client = context.bound(self._client, job)
            context.cover(job.covered_client)
            for patch in context.THREAD_PATCHES:
                patch.install()
        self._entered.append(job)
        _open_jobs.add(job)
        delivery.sender.flush_when_process_ends()
        job.trace = open_trace(job.job_id, job.parent_job_id)
        context.innermost.set(job)
        return job


session = Session


def instrument() -> None:
    """Patch httpx so that the requests of its clients are tagged, and threads inherit the job.

    `session()` without a client does it, `agentkv.instrument()` adds the frameworks. A second call
    does nothing.
    """
    for patch in (*context.HTTP_PATCHES, *context.THREAD_PATCHES):
        patch.install()


def _end_open_jobs() -> None:
    for job in list(_open_jobs):
        job.end()


delivery.before_exit.append(_end_open_jobs)
