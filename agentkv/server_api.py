"""The `/v1/agentkv` routes of one server as Python calls.

Plain HTTP with short time-outs, one call one request: no cache, no retry, no thread. Nothing is
imported or opened before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentkv.errors import AgentKVServerError
from agentkv.wire import ToolEvent

if TYPE_CHECKING:
    import httpx

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
