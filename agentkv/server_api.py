"""The `/v1/agentkv` routes of one server as Python calls.

Plain HTTP with short time-outs, one call one request: no cache, no retry, no thread. Nothing is
imported or opened before the first call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentkv.errors import AgentKVServerError
from agentkv.wire import ToolEvent

if TYPE_CHECKING:
    import httpx

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
    ) -> None:
        self.root_url = url.rstrip("/").removesuffix("/v1")
        self._headers = dict(headers or {})
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def set_headers(self, headers: Mapping[str, str]) -> None:
        """Send these headers from now on instead of those given before."""
        self._headers = dict(headers)

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
        return self._object("GET", f"/jobs/{quote(job_id, safe='')}")

    def timestamps(self) -> dict[str, Any]:
        """When each job arrived, ran, was pinned and unpinned, and why."""
        return self._object("GET", "/timestamps")

    def send_tool_event(self, job_id: str, event: ToolEvent) -> None:
        """Tell the server that a tool of the job started or finished."""
        self._call("POST", f"/jobs/{quote(job_id, safe='')}/tool", event.as_fields())

    def release(self, job_id: str) -> None:
        """Free the job's pinned blocks now."""
        self._call("POST", f"/jobs/{quote(job_id, safe='')}/release", {})

    def _object(self, method: str, path: str) -> dict[str, Any]:
        answer = self._call(method, path)
        if not isinstance(answer, dict):
            raise AgentKVServerError(f"{self.root_url}/v1/agentkv{path}: no JSON object came back")
        return answer

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        import httpx  # slow to import, and not every user of agentkv talks to a server

        url = f"{self.root_url}/v1/agentkv{path}"
        try:
            reply = _client().request(method, url, json=body, headers=self._headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise NoAnswerError(f"{url}: no answer ({type(error).__name__}: {error})") from error
        if not reply.is_success:
            text = reply.text[:200].replace("\n", " ")
            raise StatusError(f"{url}: HTTP {reply.status_code} {text}", reply.status_code)
        try:
            return reply.json()
        except ValueError as error:
            raise AgentKVServerError(f"{url}: no JSON came back") from error


# One pool of connections per process id: a forked child must neither use nor close its parent's.
# No lock, which a fork could leave held: two first calls at once cost a second pool.
_clients: dict[int, httpx.Client] = {}


def _client() -> httpx.Client:
    import httpx

    client = _clients.get(os.getpid())
    return client or _clients.setdefault(os.getpid(), httpx.Client(timeout=CALL_TIMEOUT_S))


def close_connections() -> None:
    """Close the idle connections to all servers; the next call opens new ones."""
    client = _clients.pop(os.getpid(), None)
    if client is not None:
        client.close()
