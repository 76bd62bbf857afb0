"""How the routes of a server are called: by the client whose calls go there, if that can be.

Then its transport, its certificates and its key of that moment count, whatever they are. A client
that is gone, closed or asynchronous (outside of its loop) is stood in for by our own connections
with the headers it had last.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentkv.errors import AgentKVServerError
from agentkv.protocol import ToolEvent

if TYPE_CHECKING:
    import httpx


class Reach:
    """One way to a server. `headers` are sent beside those of the client.

    is_direct: the client's calls go to this very server, so that it can call the routes itself.
    """

    def __init__(
        self,
        client: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        is_direct: bool = True,
    ) -> None:
        self._own_headers = dict(headers or {})
        self._client_ref = None if client is None else weakref.ref(client)
        self._is_direct = is_direct
        self._last_headers = self._own_headers
        self.headers()

    def is_by(self, client: Any, headers: Mapping[str, str]) -> bool:
        """Whether this is the way by that client, with these headers of a request."""
        return client is not None and self._client() is client and self._own_headers == headers

    def headers(self) -> Mapping[str, str]:
        """What our own connection is to send: the client's key and headers, as of now."""
        client = self._client()
        if client is not None:
            all_headers = {**client.auth_headers, **client.default_headers, **self._own_headers}
            self._last_headers = {
                name: value
                for name, value in all_headers.items()
                if isinstance(value, str) and not name.lower().startswith("x-stainless")
            }
        return self._last_headers

    @property
    def is_async(self) -> bool:
        """Whether the routes are best called on the loop of an asynchronous client."""
        client = self._client()
        return self._is_direct and client is not None and _is_async(client)

    def api(self, root_url: str) -> ServerAPI:
        """The routes, to be called from any thread."""
        headers, client = self.headers(), self._client()
        if client is None or not self._is_direct or _is_async(client):
            return ServerAPI(root_url, headers=headers)
        own_headers = self._own_headers

        def send(method: str, url: str, body: Mapping[str, object] | None) -> Any:
            if client.is_closed():
                return send_request(method, url, body, headers=headers)
            try:
                return _sdk_request(client, method, url, body, own_headers)
            except Exception as error:  # the SDK's, or of whatever its owner put below it
                raise _failure_of(error, url) from error

        return ServerAPI(root_url, send=send)

    async def info(self, root_url: str) -> dict[str, Any]:
        """`ServerAPI.info` by an asynchronous client; raises the same, in CALL_TIMEOUT_S."""
        import anyio  # the SDK brings it

        url = f"{root_url}/v1/agentkv/info"
        try:
            with anyio.fail_after(CALL_TIMEOUT_S):
                answer = await _sdk_request(self._client(), "GET", url, None, self._own_headers)
        except TimeoutError as error:
            raise NoAnswerError(f"{url}: no answer within {CALL_TIMEOUT_S:g} s") from error
        except Exception as error:
            raise _failure_of(error, url) from error
        if not isinstance(answer, dict):
            raise AgentKVServerError(f"{url}: no JSON object came back")
        return answer

    def _client(self) -> Any:
        return None if self._client_ref is None else self._client_ref()


def _sdk_request(
    client: Any,
    method: str,
    url: str,
    body: Mapping[str, object] | None,
    headers: Mapping[str, str],
) -> Any:
    """The JSON that came back, or, of an asynchronous client, an awaitable of it."""
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


Send = Callable[[str, str, Mapping[str, object] | None], Any]

CALL_TIMEOUT_S = 3.0


class NoAnswerError(AgentKVServerError):
    """The server could not be reached, or did not answer in time."""


class StatusError(AgentKVServerError):
    """The server answered, but not with success."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerAPI:
    """The agentkv routes behind `url`, a server's root or its OpenAI base URL (ending in `/v1`).

    send: makes the request `(method, url, body)` and gives the JSON that came back, in place of
        connections of our own with the key and headers given here.

    Every method raises AgentKVServerError when the server cannot be reached within
    CALL_TIMEOUT_S, answers with an error, or answers with something else than JSON. Safe to share
    between threads.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        send: Send | None = None,
    ) -> None:
        self.root_url = root_of(url)
        own_headers = dict(headers or {})
        if api_key is not None:
            own_headers["Authorization"] = f"Bearer {api_key}"
        self._send = send or partial(send_request, headers=own_headers)

    def info(self) -> dict[str, Any]:
        """Version, policy and its settings, vLLM version, block size and number of blocks."""
        return self._object("GET", "/info")

    def stats(self) -> dict[str, Any]:
        """Totals and gauges."""
        return self._object("GET", "/stats")

    def jobs(self) -> list[dict[str, Any]]:
        """The live jobs."""
        answer = self._object("GET", "/jobs")
        return list(answer.get("jobs", ()))

    def job(self, job_id: str) -> dict[str, Any]:
        """One live job; an unknown one is an error with status 404."""
        return self._object("GET", _path_of(job_id))

    def timestamps(self) -> dict[str, Any]:
        """When each job arrived, ran, was pinned and unpinned, and why."""
        return self._object("GET", "/timestamps")

    def send_tool_event(self, job_id: str, event: ToolEvent) -> None:
        """Tell the server that a tool of the job started or finished."""
        self._call("POST", f"{_path_of(job_id)}/tool", event.as_fields())

    def release(self, job_id: str) -> None:
        """Free the job's pinned blocks now."""
        self._call("POST", f"{_path_of(job_id)}/release", {})

    def _object(self, method: str, path: str) -> dict[str, Any]:
        answer = self._call(method, path)
        if not isinstance(answer, dict):
            raise AgentKVServerError(f"{self.root_url}/v1/agentkv{path}: no JSON object came back")
        return answer

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        return self._send(method, f"{self.root_url}/v1/agentkv{path}", body)


def send_request(
    method: str, url: str, body: Mapping[str, object] | None, *, headers: Mapping[str, str]
) -> Any:
    """Send by a connection of our own: the JSON that came back, or AgentKVServerError."""
    import httpx  # slow to import, and not every user of agentkv talks to a server

    try:
        reply = _client().request(method, url, json=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise NoAnswerError(f"{url}: no answer ({type(error).__name__}: {error})") from error
    if not reply.is_success:
        text = reply.text[:200].replace("\n", " ")
        raise StatusError(f"{url}: HTTP {reply.status_code} {text}", reply.status_code)
    try:
        return reply.json()
    except ValueError as error:
        raise AgentKVServerError(f"{url}: no JSON came back") from error


def root_of(url: str) -> str:
    """The server's root of any of its two URLs."""
    return url.rstrip("/").removesuffix("/v1")


def _path_of(job_id: str) -> str:
    # a segment of dots alone would be folded away on the way
    segment = quote(job_id, safe="")
    return f"/jobs/{segment if segment.strip('.') else segment.replace('.', '%2E')}"


# One pool of connections per process id: a forked child must neither use nor close its parent's.
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
