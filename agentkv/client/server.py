"""The servers that this process has called, and each job's way to report its tools and its end.

A server is asked once whether it has the plugin, before the first report to it; nobody waits for
that but a session with `on_missing_server="raise"`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from agentkv.client import delivery
from agentkv.client.calls import connections, job_path, root_of, send_request, without_password
from agentkv.errors import AgentKVServerError, NoAnswerError, StatusError
from agentkv.protocol import WIRE_VERSION
from agentkv.visible import visible

logger = logging.getLogger(__name__)


class Server:
    """One server, and whether it takes reports. Safe to share between threads."""

    def __init__(self, root_url: str) -> None:
        self.root_url = root_url
        self.has_plugin = False
        self.missing: str | None = None
        """Why it takes no reports, as last heard."""
        self.is_final = False
        """It has none, and will have none."""
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def ask(self, get_info: Callable[[], Any], *, again: bool = False) -> None:
        """Ask the server for the plugin, unless it is known to have it or not.

        again: also if it is known not to have it. Raises AgentKVServerError if it did not answer,
        or refused the key.
        """
        with self._lock:
            if self.has_plugin or (self.is_final and not again):
                return
            try:
                info = get_info()
            except AgentKVServerError as error:
                self._note_missing(f"no agentkv plugin found at {self.root_url} ({error})")
                # such an error says nothing about the plugin: server down, busy, or the key expired
                self.is_final = not (isinstance(error, NoAnswerError) or _says_nothing(error))
                if not self.is_final:
                    raise
                return
            version = info.get("wire_version") if isinstance(info, dict) else None
            self.has_plugin = version == WIRE_VERSION
            self.is_final = not self.has_plugin
            self._note_missing(
                f"the server at {self.root_url} speaks agentkv wire version {version!r}, "
                f"this client {WIRE_VERSION}"
            )

    def _note_missing(self, reason: str) -> None:
        self.missing = None if self.has_plugin else without_password(reason)

    def warn_once(self, message: str, *values: object) -> None:
        """Warn, once a process, in these words."""
        level = logging.DEBUG if message in self._warned else logging.WARNING
        self._warned.add(message)
        logger.log(level, message, *(visible(without_password(str(value))) for value in values))


def _says_nothing(error: AgentKVServerError) -> bool:
    return isinstance(error, StatusError) and (error.is_transient or error.status in (401, 403))


# The process id is part of the key: a forked child must not meet a lock its parent held.
_servers: dict[tuple[int, str], Server] = {}


def server_at(url: str) -> Server:
    """The server behind a URL, with or without `/v1`: the same object every time."""
    here = os.getpid()
    server = _servers.get((here, url))
    if server is None:
        root_url = root_of(url)
        server = _servers.setdefault((here, root_url), Server(root_url))
        _servers[here, url] = server
    return server


def forget_servers() -> None:
    """Forget what servers answered, so that each one is asked again (tests, or a redeployment)."""
    _servers.clear()
    delivery.forget_failures()


class Route:
    """A job's way to a server: over the httpx client of its requests, with their keys.

    client: None where requests go by other libraries. If it is asynchronous or closed, connections
        of our own have its TLS settings.
    headers: the keys, and what else a gateway wants.
    on_answer: is given the server's root and its answer to the release.
    """

    def __init__(
        self,
        server: Server,
        job_id: str,
        *,
        client: Any,
        headers: Mapping[str, str],
        job_headers: Mapping[str, str],
        on_missing: str,
        on_answer: Callable[[str, object], None],
    ) -> None:
        self.server = server
        self.client = client
        self.headers = headers
        self._job_id = job_id
        self._job_headers = job_headers
        self._on_missing = on_missing
        self._on_answer = on_answer

    @property
    def must_ask(self) -> bool:
        """True if a request has to wait until the server was found to have the plugin."""
        return self._on_missing == "raise" and not self.server.has_plugin

    def require_plugin(self) -> None:
        """Raise AgentKVServerError if the session needs the plugin and the server lacks it."""
        if not self.must_ask:
            return
        cause = None
        try:
            self.server.ask(self._get_info, again=True)
        except AgentKVServerError as error:
            cause = error
        if not self.server.has_plugin:
            text = f"{self.server.missing}; needed because of on_missing_server='raise'"
            raise AgentKVServerError(text) from cause

    async def require_plugin_async(self) -> None:
        """The same for an event loop, which it does not hold up."""
        if self.must_ask:
            import anyio.to_thread  # httpx depends on it; the caller may run on trio

            await anyio.to_thread.run_sync(self.require_plugin)

    def tell(self, action: str, body: Mapping[str, object]) -> delivery.Delivery | None:
        """Post to one of the job's routes, "tool" or "release", in the background."""
        if self.server.is_final:
            return None
        post = delivery.Delivery(
            lambda: self._deliver(action, body),
            lambda reason: self._drop(action, reason),
            server=self.server.root_url,
            is_release=action == "release",
        )
        delivery.submit(post)
        return post

    def _deliver(self, action: str, body: Mapping[str, object]) -> None:
        self.server.ask(self._get_info)
        if self.server.has_plugin:
            answer = self._post(action, body)
            if action == "release":
                self._on_answer(self.server.root_url, answer)
        else:
            self._warn_of_missing()

    def _post(self, action: str, body: Mapping[str, object]) -> object:
        try:
            return self._send("POST", f"{job_path(self._job_id)}/{action}", body)
        except StatusError as error:
            if error.status != 404:
                raise
        if action != "release":
            return None
        try:  # the job ended with its last step: its tokens are known all the same
            found = self._send("GET", f"/explain?job={quote(self._job_id, safe='')}")
            return found["jobs"][0]
        except (AgentKVServerError, LookupError, TypeError):
            return None

    def _drop(self, action: str, reason: object) -> None:
        if not self.server.has_plugin:
            self._warn_of_missing()
            return
        self.server.warn_once(
            "agentkv dropped a %s for %s (%s); further drops are not reported. The agent is not "
            "affected; the server frees the job when its TTL runs out.",
            *(action, self.server.root_url, reason),
        )

    def _warn_of_missing(self) -> None:
        if self._on_missing == "warn":
            text = "agentkv: %s. Calls go out as ever, with headers that nobody reads there."
            self.server.warn_once(text, self.server.missing)

    def _get_info(self) -> Any:
        return self._send("GET", "/info")

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        client = self.client
        if client is None or client.is_closed or hasattr(client, "aclose"):
            client = connections(_tls_of(client))
        url = f"{self.server.root_url}/v1/agentkv{path}"
        headers = {**self.headers, **self._job_headers}
        return send_request(method, url, body, headers=headers, client=client)


def _tls_of(client: Any) -> Any:
    """The `ssl.SSLContext` of an httpx client's connections.

    Source: HTTPTransport and AsyncHTTPTransport keep it in their pool (httpx 0.28, httpcore 1).
    """
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    return getattr(pool, "_ssl_context", None)
