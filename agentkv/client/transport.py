"""How a server's `/v1/agentkv` routes are called: as Python methods, over one of two transports.

`ServerTransport` calls them by the SDK client whose calls go to that server, so that its transport,
certificates and current key apply. If that client is gone, closed or asynchronous, connections of
our own send the headers it had last. One call is one request: no cache, no retry, no thread.
"""

from __future__ import annotations

import inspect
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from agentkv.errors import AgentKVServerError, NoAnswerError, NoThreadError, StatusError
from agentkv.protocol import ToolEvent
from agentkv.visible import visible

if TYPE_CHECKING:
    import httpx

Body = Mapping[str, object] | None
Send = Callable[[str, str, Body], Any]
T = TypeVar("T")

CALL_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 35.0
"""For commands that a person waits for; the server itself gives its engine up after 30 s."""


class ServerAPI:
    """The agentkv routes behind `url`, a server's root or its OpenAI base URL (ending in `/v1`).

    timeout_s: for each request; commands give a busy engine more than an agent's call may wait.
    send: makes the request `(method, url, body)` and returns the JSON of the reply, in place of
        connections of our own with the key and headers given here.

    Every method raises AgentKVServerError when the server cannot be reached in time, answers with
    an error, or answers with something else than JSON. Safe to share between threads.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        send: Send | None = None,
    ) -> None:
        self.root_url = root_of(url)
        own_headers = dict(headers or {})
        if api_key is not None:
            own_headers["Authorization"] = f"Bearer {api_key}"
        self._send = send or partial(send_request, headers=own_headers, timeout_s=timeout_s)

    def info(self) -> dict[str, Any]:
        """Version, policy and its settings, vLLM version, block size and number of blocks."""
        return self._object("/info")

    def stats(self) -> dict[str, Any]:
        """Totals and gauges."""
        return self._object("/stats")

    def jobs(self) -> list[dict[str, Any]]:
        """The live jobs."""
        return list(self._object("/jobs").get("jobs", ()))

    def job(self, job_id: str) -> dict[str, Any]:
        """One live job; StatusError 404 for an unknown one."""
        return self._object(job_path(job_id))

    def explained(self, job_id: str | None = None, *, worst: int = 1) -> list[dict[str, Any]]:
        """A job's turns and why they missed, or those of the `worst` jobs; StatusError 404 for an
        unknown one."""
        query = f"worst={worst}" if job_id is None else f"job={quote(job_id, safe='')}"
        return list(self._noted(f"/explain?{query}").get("jobs", ()))

    def timestamps(self) -> dict[str, Any]:
        """When each job arrived, ran, was pinned and unpinned, and why."""
        return self._noted("/timestamps")

    def send_tool_event(self, job_id: str, event: ToolEvent) -> None:
        """Report that a tool of the job started or finished."""
        self._send("POST", route(self.root_url, f"{job_path(job_id)}/tool"), event.as_fields())

    def release(self, job_id: str) -> None:
        """Free the job's pinned blocks now."""
        self._send("POST", route(self.root_url, f"{job_path(job_id)}/release"), {})

    def _noted(self, path: str) -> dict[str, Any]:
        """A reading for a person: its absence, if the server has no plugin, is explained."""
        try:
            return self._object(path)
        except StatusError as error:
            if error.status == 404 and not self._has_plugin():
                raise AgentKVServerError(
                    f"{self.root_url} runs without agentkv's policies: start it with "
                    "--scheduling-policy agentkv where agentkv is installed"
                ) from error
            raise

    def _has_plugin(self) -> bool:
        try:
            self.info()
        except StatusError as error:
            return error.status != 404
        return True

    def _object(self, path: str) -> dict[str, Any]:
        url = route(self.root_url, path)
        return _object_of(self._send("GET", url, None), url)


class ServerTransport:
    """One way to call a server: by an SDK client, with `headers` in addition to the client's own.

    job_headers: sent with every call, too; they are no part of the key that a server may refuse.
    is_direct: the client's calls go to this very server, so that it can call the routes itself.
    """

    def __init__(
        self,
        client: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        job_headers: Mapping[str, str] | None = None,
        is_direct: bool = True,
    ) -> None:
        self.client: Callable[[], Any] = (lambda: None) if client is None else weakref.ref(client)
        self._has_client = client is not None
        self._own_headers = dict(headers or {})
        self._job_headers = dict(job_headers or {})
        self._is_direct = is_direct
        self._last_headers = self._own_headers
        self.headers()

    def is_by(self, client: Any, headers: Mapping[str, str]) -> bool:
        """True if this is the transport of that client with these headers of a request."""
        is_this_way = self._has_client is (client is not None) and self.client() is client
        return is_this_way and self._own_headers == headers

    def headers(self) -> Mapping[str, str]:
        """The client's current key and headers, without those of the job."""
        client = self.client()
        if client is not None:
            all_headers = {**client.auth_headers, **client.default_headers, **self._own_headers}
            self._last_headers = texts_of(all_headers)
        return self._last_headers

    @property
    def is_async(self) -> bool:
        """True if the routes are best called on the event loop of an asynchronous client."""
        client = self.client()
        return self._is_direct and client is not None and _is_async(client)

    def send(self, method: str, url: str, body: Body) -> Any:
        """Make one request from any thread; returns the JSON, raises AgentKVServerError."""
        headers, client = self.headers(), self.client()
        headers = {**headers, **spelled_as(headers, self._job_headers)}
        if client is None or not self._is_direct or _is_async(client) or client.is_closed():
            return send_request(method, url, body, headers=headers)
        try:
            return self._request_by(client, method, url, body)
        except Exception as error:  # the SDK's, or that of a transport its owner gave it
            raise _failure_of(error, url) from error

    def info(self, root_url: str) -> dict[str, Any]:
        """`ServerAPI.info` of a server."""
        return ServerAPI(root_url, send=self.send).info()

    async def info_async(self, root_url: str) -> dict[str, Any]:
        """Ask likewise by an asynchronous client, within CALL_TIMEOUT_S."""
        import anyio  # the SDK depends on it

        url = route(root_url, "/info")
        try:
            with anyio.fail_after(CALL_TIMEOUT_S):
                answer = await self._request_by(self.client(), "GET", url, None)
        except TimeoutError as error:
            raise NoAnswerError(f"{url}: no answer within {CALL_TIMEOUT_S:g} s") from error
        except Exception as error:
            raise _failure_of(error, url) from error
        return _object_of(answer, url)

    def _request_by(self, client: Any, method: str, url: str, body: Body) -> Any:
        """The JSON of the reply, or, for an asynchronous client, an awaitable of it."""
        usual = {**client.default_headers, **self._own_headers}
        headers = {**self._own_headers, **spelled_as(usual, self._job_headers)}
        options = {"timeout": CALL_TIMEOUT_S, "max_retries": 0, "headers": headers}
        if method == "GET":
            return client.get(url, cast_to=object, options=options)
        return client.post(url, cast_to=object, body=body, options=options)


def _failure_of(error: Exception, url: str) -> AgentKVServerError:
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return StatusError(f"{url}: HTTP {status} {str(error)[:200]}", status)
    cause = error.__cause__ or error
    return NoAnswerError(f"{url}: no answer ({type(cause).__name__}: {cause})")


def _is_async(client: Any) -> bool:
    return inspect.iscoroutinefunction(type(client).request)


def texts_of(headers: Mapping[str, object]) -> dict[str, str]:
    """The headers with a text value, without the SDK's notes to itself."""
    return {
        name: value
        for name, value in headers.items()
        if isinstance(value, str) and not name.lower().startswith("x-stainless")
    }


def spelled_as(others: Mapping[str, object], headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, each under the name that `others` have for it.

    Of two names that differ in case alone the SDKs send both.
    """
    names = {name.lower(): name for name in others}
    return {names.get(name.lower(), name): value for name, value in headers.items()}


def root_of(url: str) -> str:
    """The server's root, from either of its two URLs."""
    return url.rstrip("/").removesuffix("/v1")


def route(root_url: str, path: str) -> str:
    """The URL of one of our routes."""
    return f"{root_url}/v1/agentkv{path}"


def without_password(text: str) -> str:
    """The text with the users and passwords of the URLs in it left out, for messages."""
    return re.sub(r"://[^/@\s]*@", "://", text)


def job_path(job_id: str) -> str:
    """The path of a job below `/v1/agentkv`."""
    # HTTP clients fold a segment of dots alone away
    segment = quote(job_id, safe="")
    return f"/jobs/{segment if segment.strip('.') else segment.replace('.', '%2E')}"


def _object_of(answer: Any, url: str) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise AgentKVServerError(f"{url}: no JSON object came back")
    return answer


def send_request(
    method: str,
    url: str,
    body: Body,
    *,
    headers: Mapping[str, str],
    timeout_s: float = CALL_TIMEOUT_S,
) -> Any:
    """Make one request over connections of our own; raises AgentKVServerError."""
    import httpx  # slow to import, and not every user of agentkv talks to a server

    try:
        reply = _client().request(method, url, json=body, headers=headers, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoAnswerError(f"{url}: no answer ({type(error).__name__}: {error})") from error
    if not reply.is_success:
        raise StatusError(f"{url}: HTTP {reply.status_code} {shown(reply)}", reply.status_code)
    try:
        return reply.json()
    except (ValueError, RecursionError) as error:
        raise AgentKVServerError(f"{url}: no JSON came back") from error


def shown(reply: httpx.Response) -> str:
    """The beginning of an answer on one line, for messages; a page for browsers says nothing."""
    is_page = "html" in reply.headers.get("content-type", "")
    return "with a page for browsers" if is_page else visible(reply.text[:200].replace("\n", " "))


def is_transient(error: BaseException) -> bool:
    """True if the same call may well succeed a little later: the server is down or busy."""
    if isinstance(error, StatusError):
        return error.status in (408, 429) or error.status >= 500
    return isinstance(error, NoAnswerError)


def in_time(call: Callable[[], T], timeout_s: float, *, thread_name: str) -> T:
    """Return what a call returns; NoAnswerError if that takes longer, even if bytes trickle in.

    A new thread makes the call, and may outlast this one. Raises NoAnswerError, too,
    if the system has no thread to spare.
    """
    answer: Future[T] = Future()

    def make_call() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=make_call, name=thread_name, daemon=True)
    try:
        Context().run(thread.start)  # in ours, a thread that hangs would keep the job alive
    except RuntimeError as error:
        raise no_thread(error) from error
    try:
        return answer.result(timeout_s)
    except TimeoutError as error:
        raise NoAnswerError(f"no answer within {timeout_s:g} s") from error


def no_thread(error: RuntimeError) -> NoThreadError:
    """The failure of a call for which no thread could start."""
    return NoThreadError(f"no free thread to ask it from: {error}")


# One connection pool per process id: a forked child must neither use nor close its parent's.
# No lock, which a fork could leave held: two first calls at once cost a second pool.
_clients: dict[int, httpx.Client] = {}


def _client() -> httpx.Client:
    import httpx

    client = _clients.get(os.getpid())
    if client is not None:
        return client
    try:
        client = httpx.Client(timeout=CALL_TIMEOUT_S, follow_redirects=True)
    except (ImportError, ValueError, httpx.InvalidURL, OSError) as error:
        raise AgentKVServerError(
            f"no connection can be opened ({type(error).__name__}: {error}); it is set up by the "
            "environment: ALL_PROXY, HTTP_PROXY, HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR"
        ) from error
    return _clients.setdefault(os.getpid(), client)


def close_connections() -> None:
    """Close the idle connections to all servers; the next call opens new ones."""
    client = _clients.pop(os.getpid(), None)
    if client is not None:
        client.close()
