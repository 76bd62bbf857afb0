"""The servers that this process has called, and each job's way to report its tools and its end.

A server is asked once whether it has the plugin, before the first report to it; nobody waits for
that but a session with `on_missing_server="raise"`.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from agentkv.client.delivery import Delivery, sender
from agentkv.client.job import Job
from agentkv.errors import AgentKVServerError, NoAnswerError, StatusError
from agentkv.protocol import OUR_HEADERS, SESSION_HEADER, WIRE_VERSION
from agentkv.visible import visible

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
_OF_ONE_REQUEST = re.compile(
    r"host|connection|accept.*|content-.*|transfer-encoding|user-agent|traceparent|tracestate"
    rf"|x-stainless-.*|{OUR_HEADERS}.*|{SESSION_HEADER}",
    re.IGNORECASE,
)
"""Headers of a request that calls of our own to the same server do not repeat."""


class Server:
    """One server, and whether it takes reports. Safe to share between threads."""

    def __init__(self, root_url: str) -> None:
        self.root_url = root_url
        self.has_plugin: bool | None = None
        """None: it has not said so far."""
        self.missing: str | None = None
        """Why it takes no reports, as last heard."""
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def check_plugin(self, send: Callable[[str, str], Any]) -> None:
        """Raise AgentKVServerError unless the server has the plugin; it is asked until it says."""
        with self._lock:
            if self.has_plugin is None:
                try:
                    info = send("GET", "/info")
                    version = info.get("wire_version") if isinstance(info, dict) else None
                    if version != WIRE_VERSION:
                        text = f"it speaks wire version {version!r}, this client {WIRE_VERSION}"
                        raise AgentKVServerError(text)
                    self.has_plugin = True
                except AgentKVServerError as error:
                    self.missing = f"no agentkv plugin found at {self.root_url} ({error})"
                    # one that is down or busy, or whose key has expired, may have it
                    may_have = isinstance(error, NoAnswerError) or (
                        isinstance(error, StatusError)
                        and (error.may_pass or error.status in (401, 403))
                    )
                    self.has_plugin = None if may_have else False
                    raise
        if not self.has_plugin:
            raise AgentKVServerError(str(self.missing))

    def warn_once(self, message: str, *values: object) -> None:
        """Warn, once a process, in these words; no password of a URL is in them."""
        if message not in self._warned:
            self._warned.add(message)
            shown = (re.sub(r"://[^/@\s]*@", "://", visible(str(value))) for value in values)
            logger.warning(message, *shown)


# The process id is part of the key: a forked child must not meet a lock its parent held.
_servers: dict[tuple[int, str], Server] = {}


def server_at(url: str) -> Server:
    """The server behind a URL, with or without `/v1`: the same object every time."""
    key = os.getpid(), root_of(url)
    return _servers.get(key) or _servers.setdefault(key, Server(key[1]))


def forget_servers() -> None:
    """Forget what servers answered, so that each one is asked again (tests, or a redeployment)."""
    _servers.clear()
    sender.silent_until_s.clear()


@dataclass(frozen=True, eq=False)
class Route:
    """A job's way to a server: over the httpx client of its requests, with their keys.

    client: None where requests go by other libraries. If it is asynchronous or closed, connections
        of our own have its TLS settings.
    headers: those of a request; its keys, and what else a gateway wants, go with each report.
    """

    job: Job[Any]
    server: Server
    client: Any
    headers: Mapping[str, str]

    def require_plugin(self) -> None:
        """Raise AgentKVServerError if the server lacks the plugin, now that it is asked again."""
        self.server.has_plugin = self.server.has_plugin or None
        try:
            self.server.check_plugin(self._send)
        except AgentKVServerError as error:
            text = f"{self.server.missing}; needed because of on_missing_server='raise'"
            raise AgentKVServerError(text) from error

    async def require_plugin_async(self) -> None:
        """The same for an event loop, which it does not hold up."""
        if not self.server.has_plugin:
            import anyio.to_thread  # httpx depends on it; the caller may run on trio

            await anyio.to_thread.run_sync(self.require_plugin)

    def tell(self, action: str, body: Mapping[str, object]) -> threading.Event:
        """Post to one of the job's routes, "tool" or "release", in the background."""
        send = functools.partial(self._deliver, action, body)
        drop = functools.partial(self._drop, action)
        return sender.submit(Delivery(self.server.root_url, send, drop))

    def _deliver(self, action: str, body: Mapping[str, object]) -> None:
        self.server.check_plugin(self._send)
        answer = None
        try:
            answer = self._send("POST", f"{job_path(self.job.job_id)}/{action}", body)
        except StatusError as error:
            if error.status != 404:
                raise
            if action == "release":
                # the job ended with its last step; its tokens are known all the same
                with suppress(AgentKVServerError, LookupError, TypeError):
                    query = f"job={quote(self.job.job_id, safe='')}"
                    answer = self._send("GET", f"/explain?{query}")["jobs"][0]
        if action == "release":
            self.job.note_answer(self.server.root_url, answer)

    def _drop(self, action: str, reason: object) -> None:
        server = self.server
        if server.has_plugin:
            server.warn_once(
                "agentkv dropped a %s for %s (%s); further drops are not reported. The agent is "
                "not affected; the server frees the job when its TTL runs out.",
                *(action, server.root_url, reason),
            )
            return
        self.job.no_tokens = server.missing
        if self.job.on_missing_server == "warn":
            text = "agentkv: %s. Calls go out as ever, with headers that nobody reads there."
            server.warn_once(text, server.missing or reason)

    def _send(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        keys = {
            name: text
            for name, text in self.headers.items()
            if isinstance(text, str) and not _OF_ONE_REQUEST.fullmatch(name)
        }
        url, headers = f"{self.server.root_url}/v1/agentkv{path}", keys | self.job.routing_headers
        client = self.client
        if client is None:
            return send_request(method, url, body, headers=headers)
        if client.is_closed or hasattr(client, "aclose"):
            # Source of the ssl.SSLContext: HTTPTransport keeps it in its pool (httpx 0.28)
            pool = getattr(client._transport, "_pool", None)
            client = connections(os.getpid(), getattr(pool, "_ssl_context", None))
        return send_request(method, url, body, headers=headers, client=client)


def root_of(url: str) -> str:
    """The server's root, from either of its two URLs."""
    return url.rstrip("/").removesuffix("/v1")


def job_path(job_id: str) -> str:
    """The path of a job below `/v1/agentkv`."""
    # HTTP clients fold a segment of dots alone away
    segment = quote(job_id, safe="")
    return f"/jobs/{segment if segment.strip('.') else segment.replace('.', '%2E')}"


def send_request(
    method: str,
    url: str,
    body: Mapping[str, object] | None,
    *,
    headers: Mapping[str, str],
    timeout_s: float = CALL_TIMEOUT_S,
    client: Any = None,
) -> Any:
    """Make one request; returns the JSON of the reply, raises AgentKVServerError.

    client: of httpx or httpx2; by default connections of our own. Connecting, sending and each part
    of the reply have `timeout_s` each, the whole reply twice that.
    """
    content, deadline_s = bytearray(), time.monotonic() + 2 * timeout_s
    options = {"json": body, "headers": headers, "timeout": timeout_s, "follow_redirects": True}
    try:
        client = client or connections(os.getpid())
        with client.stream(method, url, **options) as reply:
            for chunk in reply.iter_bytes():
                content += chunk
                if time.monotonic() > deadline_s:  # a server whose bytes trickle in
                    raise TimeoutError(f"more than {2 * timeout_s:g} s")
    except Exception as error:  # httpx's own, or that of a transport its owner gave it
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "TooManyRedirects" in kinds:
            raise AgentKVServerError(f"{url}: redirects without an end") from error
        text = f"{url}: no answer ({type(error).__name__}: {error}): is the server running?"
        raise NoAnswerError(text, is_late=any("Timeout" in kind for kind in kinds)) from error
    if not reply.is_success:
        seen = shown(reply, content)
        raise StatusError(f"{url}: HTTP {reply.status_code} {seen}", reply.status_code)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AgentKVServerError(f"{url}: no JSON came back") from error


def shown(reply: Any, content: bytes | bytearray) -> str:
    """The beginning of an answer on one line, for messages; a page for browsers says nothing."""
    if "html" in reply.headers.get("content-type", ""):
        return "with a page for browsers"
    return visible(bytes(content[:200]).decode(errors="replace").replace("\n", " "))


# A forked child must neither use nor close its parent's connections. Two first calls at once cost
# a second pool; a lock of ours could be held when a process forks.
@functools.lru_cache(maxsize=8)
def connections(process_id: int, tls: Any = None) -> httpx.Client:
    """Connections of our own, one pool for each process and each `ssl.SSLContext` given."""
    import httpx  # slow to import, and not every user of agentkv talks to a server

    return httpx.Client(verify=True if tls is None else tls)
