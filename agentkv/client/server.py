"""The servers that this process has called: whether each one has the agentkv plugin.

A call that needs to know asks its server once, over the transport of its job; others have it asked
in the background. So is a server that did not answer, so that the agent waits for it at most once.
Each job hands its tool events and releases to the servers it used, by a link of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentkv.client.feedback import Delivery, sender_to
from agentkv.client.transport import (
    CALL_TIMEOUT_S,
    ServerTransport,
    in_time,
    is_transient,
    no_thread,
    root_of,
    route,
    without_password,
)
from agentkv.errors import AgentKVServerError, NoAnswerError, StatusError
from agentkv.protocol import WIRE_VERSION

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 30.0

_REFUSALS = frozenset({401, 403})


class Server:
    """One server, and whether it takes tags. Safe to share between threads.

    `info` is its answer to the question for the plugin, `missing` the reason why it cannot be sent
    tags, None if it may be sent some; both are None until it was asked.
    """

    def __init__(self, root_url: str) -> None:
        self.root_url = root_url
        self.info: dict[str, Any] | None = None
        self.missing: str | None = None
        self.has_agentic_router = False
        """A router in front of it reads `agentic_context`, as the server says."""
        self.feedback = sender_to(root_url)
        self._lock = threading.Lock()
        self._ask_at_s: float | None = 0.0
        self._refused_headers: Mapping[str, str] | None = None
        self._is_warned = False

    @property
    def is_unasked(self) -> bool:
        """True until the first answer, or the first failure to get one."""
        return self.info is None and self.missing is None

    @property
    def has_plugin(self) -> bool:
        """True if the server said that it understands the tags."""
        return self.info is not None

    def ask(self, by: ServerTransport, *, force: bool = False) -> None:
        """Ask the server unless it was asked already; waits for CALL_TIMEOUT_S at most.

        force: ask again if the plugin was not found.
        """
        import httpx  # noqa: F401 - here and not in the thread, for which see FeedbackSender

        if not self._lock.acquire(timeout=CALL_TIMEOUT_S):
            self._note_silence(by)
            return
        try:
            if self._must_be_asked(force):
                with self._noting_failure(by):
                    question = partial(by.info, self.root_url)
                    # also an answer whose bytes keep trickling in ends in time
                    self._note(in_time(question, CALL_TIMEOUT_S, thread_name="agentkv-question"))
        finally:
            self._lock.release()

    async def ask_async(self, by: ServerTransport, *, force: bool = False) -> None:
        """Ask from an event loop, by the asynchronous client of the transport if it has one."""
        import anyio.to_thread  # not asyncio's: the caller may run on trio

        if not by.is_async:
            try:
                await anyio.to_thread.run_sync(partial(self.ask, by, force=force))
            except RuntimeError as error:
                self._note_failure(no_thread(error), by)
            return
        is_acquired = False
        with anyio.move_on_after(CALL_TIMEOUT_S):
            while not (is_acquired := self._lock.acquire(blocking=False)):
                await anyio.sleep(0.005)
        if not is_acquired:
            self._note_silence(by)
            return
        try:
            if self._must_be_asked(force):
                with self._noting_failure(by):
                    self._note(await by.info_async(self.root_url))
        finally:
            self._lock.release()

    def ask_in_background(self, link: JobLink) -> None:
        """Have the server asked if it never was, or did not answer and it is time to try again."""
        due_at_s = self._ask_at_s
        if not self.has_plugin and due_at_s is not None and time.monotonic() >= due_at_s:
            self._ask_at_s = None
            link.submit("GET", "/info")

    def learn(self, by: ServerTransport) -> None:
        """Ask and note the answer, in the feedback thread."""
        if not self.has_plugin:
            with self._noting_failure(by):
                self._note(by.info(self.root_url))

    def notice_another_key(self, by: ServerTransport) -> None:
        """Count a server that refused another key than this one as unasked again."""
        if self._refused_headers is not None and by.headers() != self._refused_headers:
            self._refused_headers = self.missing = None
            self._ask_at_s = 0.0

    def require_plugin(self) -> None:
        """Raise AgentKVServerError with the reason if the server cannot take tags."""
        if not self.has_plugin:
            raise AgentKVServerError(f"{self.missing}; needed because of on_missing_server='raise'")

    def warn_once(self) -> None:
        """Warn, once per process, that calls to this server have no effect there, and why."""
        if not self._is_warned:
            self._is_warned = True
            logger.warning("agentkv: %s. Calls go out with their bodies untouched.", self.missing)

    def _must_be_asked(self, force: bool) -> bool:
        return self.is_unasked or (force and not self.has_plugin)

    @contextmanager
    def _noting_failure(self, by: ServerTransport) -> Iterator[None]:
        try:
            yield
        except AgentKVServerError as error:
            self._note_failure(error, by)

    def _note_silence(self, by: ServerTransport) -> None:
        """Another caller is asking, perhaps on a loop that has stopped, and got no answer yet."""
        if self.is_unasked:
            self._note_failure(NoAnswerError(f"no answer within {CALL_TIMEOUT_S:g} s"), by)

    def _note_failure(self, error: AgentKVServerError, by: ServerTransport) -> None:
        self.missing = without_password(f"no agentkv plugin found at {self.root_url} ({error})")
        is_refused = isinstance(error, StatusError) and error.status in _REFUSALS
        if is_refused:
            self._refused_headers = by.headers()
        # of the plugin: the server is down or busy, or a key must be renewed
        says_nothing = is_refused or is_transient(error)
        self._ask_at_s = time.monotonic() + ASK_AGAIN_AFTER_S if says_nothing else None

    def _note(self, info: dict[str, Any]) -> None:
        version = info.get("wire_version")
        if version == WIRE_VERSION:
            self.info, self.missing = info, None
            settings = info.get("settings")
            if isinstance(settings, dict):
                self.has_agentic_router = settings.get("agentic_router") is True
            return
        self._ask_at_s = None
        self.missing = without_password(
            f"the server at {self.root_url} speaks agentkv wire version {version!r}, "
            f"this client {WIRE_VERSION}"
        )


@dataclass(frozen=True, slots=True)
class JobLink:
    """A job's way to a server: the transport has the keys and headers of this job's calls.

    warns: the job's user wants to be warned of a server without the plugin.
    """

    server: Server
    transport: ServerTransport
    warns: bool
    note_savings: Callable[[str, object], None]
    """Gets the server's root and what it says it has saved for the job."""

    @property
    def root_url(self) -> str:
        """The server's root."""
        return self.server.root_url

    def submit(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        """Make a call in the background; the result of `GET /info` is noted."""
        delivery = Delivery(
            partial(self.deliver, method, path, body),
            f"{method} /v1/agentkv{path} to {self.server.root_url}",
            is_release=path.endswith("/release"),
            client=self.transport.client(),
        )
        self.server.feedback.submit(delivery)

    def deliver(self, method: str, path: str, body: Mapping[str, object] | None) -> None:
        """Make a submitted call; runs in the feedback thread, raises AgentKVServerError.

        Until the server was found to have the plugin, only the question for it is sent.
        """
        if (method, path) == ("GET", "/info"):
            self.server.learn(self.transport)
            if self.warns and self.server.missing is not None:
                self.server.warn_once()  # perhaps no other call follows that would
        elif self.server.has_plugin:
            try:
                answer = self.transport.send(method, route(self.root_url, path), body)
            finally:
                if path.endswith("/release") and self.server.has_agentic_router:
                    with suppress(AgentKVServerError):  # it is the job's server that matters
                        job_id = path.split("/")[2]
                        finish = f"{self.root_url}/finish_session?session_id={job_id}"
                        self.transport.send("POST", finish, {})
            if isinstance(answer, dict):
                self.note_savings(self.root_url, answer.get("savings"))


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
