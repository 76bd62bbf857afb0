"""`agentkv.session()`: marks a block of code as one agent job.

Users enter it; it makes the job, makes it current, has its calls tagged, and ends it.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Callable
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
    runtime_checkable,
)
from weakref import WeakSet

from agentkv.client import context, feedback, http_clients, sdk_clients
from agentkv.client.job import Job, current_job, job_covering
from agentkv.client.patches import cover, uncover
from agentkv.client.server import JobLink, server_at
from agentkv.protocol import parse_affinity, parse_tags
from agentkv.tracing import open_trace

ClientT = TypeVar("ClientT")
P = ParamSpec("P")
R = TypeVar("R")

OnMissingServer = Literal["warn", "raise", "ignore"]


@runtime_checkable
class URL(Protocol):
    """A URL as an object, such as the `base_url` of a client; `str` gives its text."""

    @property
    def scheme(self) -> str: ...

    @property
    def host(self) -> str | None: ...


_open_jobs: WeakSet[Job[Any]] = WeakSet()
"""Those of sessions that were not left, such as one in a generator that nobody reads to its end."""


def _end(job: Job[Any], error: object = None) -> None:
    if job.trace is not None and not job.is_over:
        job.trace.end(error, job.summary())
    job.end()
    _open_jobs.discard(job)


def _end_open_jobs() -> None:
    for job in list(_open_jobs):
        _end(job)


feedback.before_exit.append(_end_open_jobs)


class Session(Generic[ClientT]):
    """The settings of a session; each `with` block makes a new job of them."""

    def __init__(
        self,
        client: ClientT,
        *,
        job_id: str | None,
        parent_job_id: str | None,
        expected_turns: int | None,
        server: str | URL | None,
        on_missing_server: OnMissingServer,
        headers: bool,
        affinity: str | None,
    ) -> None:
        if on_missing_server not in get_args(OnMissingServer):
            allowed = ", ".join(map(repr, get_args(OnMissingServer)))
            raise ValueError(f"on_missing_server: got {on_missing_server!r}, allowed is {allowed}")
        if client is not None:
            _require_client(client)
        self._tags = parse_tags(
            {"job_id": job_id, "parent_job_id": parent_job_id, "expected_turns": expected_turns}
        )
        self._client = client
        self._server_url = None if server is None else _text_of(server)
        self._on_missing_server = on_missing_server
        self._has_headers = headers
        self._affinity = parse_affinity(affinity)
        if affinity is not None and not headers:
            raise ValueError("session(affinity=): it travels in a header, so headers must be True")
        self._entered: list[Job[ClientT]] = []

    def __enter__(self) -> Job[ClientT]:
        job = self._new_job()
        link = self._required_link(job)
        if link is not None:
            link.server.ask(link.transport, force=True)
            link.server.require_plugin()
        return self._enter(job)

    async def __aenter__(self) -> Job[ClientT]:
        job = self._new_job()
        link = self._required_link(job)
        if link is not None:
            await link.server.ask_async(link.transport, force=True)
            link.server.require_plugin()
        return self._enter(job)

    def __exit__(self, *exc_info: object) -> None:
        current: Any = context.innermost()
        while current is not None and current not in self._entered:
            current = current.enclosing
        # None if it is left in another context than entered in, as an async generator may: any job
        job = current or self._entered[-1]
        self._entered.remove(job)
        _end(job, exc_info[1] if exc_info else None)
        context.leave()
        if self._client is not None:
            uncover(self._client)

    async def __aexit__(self, *exc_info: object) -> None:
        self.__exit__(*exc_info)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Make each call of a function, sync or async, another job."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"session() cannot decorate the generator {function.__qualname__}: its body runs "
                "in pieces, inside of the code that iterates it; use `with` in its body instead"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast(Callable[P, R], run_async)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return run

    def _new_job(self) -> Job[ClientT]:
        enclosing = current_job()
        job_id = self._tags.job_id or uuid.uuid4().hex
        parent_job_id = self._tags.parent_job_id
        if parent_job_id is None and enclosing is not None and enclosing.job_id != job_id:
            parent_job_id = enclosing.job_id
        return Job(
            job_id,
            covered_client=self._client,
            has_headers=self._has_headers,
            on_missing_server=self._on_missing_server,
            enclosing=enclosing,
            parent_job_id=parent_job_id,
            expected_turns=self._tags.expected_turns,
            server_url=self._server_url,
            affinity=self._affinity,
        )

    def _enter(self, job: Job[ClientT]) -> Job[ClientT]:
        client: Any = self._client
        if client is None:
            job.client = cast(ClientT, client)
            instrument()
        else:
            library = http_clients if http_clients.is_http_client(client) else sdk_clients
            job.client = library.drop_in(client, lambda _: None if job.is_over else job)
            cover(client, library.tagging_methods(client, lambda _: job_covering(client)))
            for patch in context.THREAD_PATCHES:
                patch.install()
        self._entered.append(job)
        _open_jobs.add(job)
        feedback.flush_when_process_ends()
        job.trace = open_trace(job.job_id, job.parent_job_id)
        context.enter(job)
        return job

    def _required_link(self, job: Job[ClientT]) -> JobLink | None:
        """The server to ask on entry, if a missing plugin is an error and the server is known."""
        if self._on_missing_server != "raise":
            return None
        url, client = self._server_url, cast(Any, self._client)
        if client is None:
            return None if url is None else job.link_to(server_at(url), None, {})
        if not http_clients.is_http_client(client):
            return sdk_clients.link_of(job, client)
        url = url or str(getattr(client, "base_url", ""))
        return http_clients.link_of(job, client, url, client.headers) if url else None


def instrument() -> None:
    """Patch every known client library so that its calls are tagged; a second call does nothing.

    Inside of a session each call of the OpenAI and Anthropic SDKs, and each request to a model over
    httpx, requests or aiohttp, is a turn, and threads and thread pools inherit the job. `session()`
    without a client does it when it is entered, `agentkv.instrument()` adds the frameworks.
    """
    for patch in (*sdk_clients.SDK_PATCHES, *http_clients.HTTP_PATCHES, *context.THREAD_PATCHES):
        patch.install()


def _require_client(client: object) -> None:
    """Raise TypeError unless `client` is a client that a session can tag."""
    if isinstance(client, type):
        raise TypeError(
            f"session(client): got the class {client.__name__}, allowed is a client made of it: "
            f"session({client.__name__}(...))"
        )
    if not (http_clients.is_http_client(client) or sdk_clients.is_sdk_client(client)):
        raise TypeError(
            f"session(client): got {type(client).__name__}, allowed is an OpenAI or Anthropic "
            "client, a client of httpx or a session of requests (or none: then all are covered)"
        )


def _text_of(url: str | URL) -> str:
    if isinstance(url, str | URL):
        return str(url)
    raise TypeError(
        f"session(server=): got {url!r:.80} ({type(url).__name__}), allowed is the URL of a "
        "server, such as 'http://127.0.0.1:8000', as text or as a client's base_url"
    )


class SessionOptions(TypedDict, total=False):
    """The keywords of `session()`."""

    job_id: str | None
    parent_job_id: str | None
    expected_turns: int | None
    server: str | URL | None
    on_missing_server: OnMissingServer
    headers: bool
    affinity: str | None


@overload
def session(client: None = None, **options: Unpack[SessionOptions]) -> Session[None]: ...


@overload
def session(client: ClientT, **options: Unpack[SessionOptions]) -> Session[ClientT]: ...


def session(
    client: Any = None,
    *,
    job_id: str | None = None,
    parent_job_id: str | None = None,
    expected_turns: int | None = None,
    server: str | URL | None = None,
    on_missing_server: OnMissingServer = "warn",
    headers: bool = True,
    affinity: str | None = None,
) -> Session[Any]:
    """One agent job: `with session() as job`, `async with`, or a decorator (a job per call).

    client: a client of the OpenAI or Anthropic SDK or of httpx, sync or async, or a session of
        requests. Its calls inside the block are tagged, and so are those of `job.client`, a drop-in
        that stays with this job in any thread or task. Nothing else is touched but threads, which
        inherit the job. Without a client, every client of these and of aiohttp is covered, until
        `agentkv.uninstrument()`; see `agentkv.instrument`.
    job_id: 1 to 256 characters; by default a new one for each job.
    parent_job_id: the job that spawned this one; by default that of the enclosing session.
    expected_turns: a hint. `job.limit_turns(n)` is a promise, `job.last_step()` the certain end.
    server: URL of the vLLM server if it is not the client's base URL (a gateway in between); it
        gets the client's key. Without a client, each client's own address is asked, and this one
        only with on_missing_server="raise": other clients may belong to other providers.
    on_missing_server: what to do about a server without the plugin. It gets the tags as headers
        alone, so that a strict endpoint accepts them; "warn" says so once, "ignore" does not,
        "raise" raises AgentKVServerError instead: on entry if the server is known by then, else
        with the first call.
    headers: False sends the tags as body fields of the two SDKs alone, and leaves requests of HTTP
        libraries as they are.
    affinity: the id of another job, such as a parent with the same prefix: routers by our recipes
        send this job to its server. Without it a router places each job by itself.

    Leaving it, also by an exception, releases the job on the server, in the background. Raises
    TagError for an id or number out of range, TypeError for a wrong client or server, ValueError
    for another wrong argument.
    """
    return Session(
        client,
        job_id=job_id,
        parent_job_id=parent_job_id,
        expected_turns=expected_turns,
        server=server,
        on_missing_server=on_missing_server,
        headers=headers,
        affinity=affinity,
    )
