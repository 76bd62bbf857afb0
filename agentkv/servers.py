"""What this process knows about the servers it has met: has each one the agentkv plugin?

A server is asked once, by the first call that goes there. A server that did not answer then is
asked again in the background, so that the agent waits for it at most once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from agentkv import feedback
from agentkv.errors import AgentKVServerError
from agentkv.server_api import NoAnswerError, ServerAPI, StatusError
from agentkv.wire import WIRE_VERSION, ToolEvent

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 30.0

_PASSING_STATUSES = frozenset({401, 403, 408, 429})


class KnownServer:
    """One server, and whether tags may be sent to it. Safe to share between threads."""

    def __init__(self, api: ServerAPI) -> None:
        self.api = api
        self.info: dict[str, Any] | None = None
        self.missing: str | None = None
        self._lock = threading.Lock()
        self._ask_again_at_s: float | None = None
        self._is_warned = False

    @property
    def is_unasked(self) -> bool:
        """True until the first answer, or the first lack of one."""
        return self.info is None and self.missing is None

    @property
    def has_plugin(self) -> bool:
        """True when the server said that it understands the tags."""
        return self.info is not None

    def ask(self, *, insist: bool = False) -> None:
        """Ask the server unless it was asked already; waits for CALL_TIMEOUT_S or so at most.

        insist asks anew as long as the plugin was not found.
        """
        with self._lock:
            if self.is_unasked or (insist and not self.has_plugin):
                self._ask()

    def ask_again_if_due(self) -> None:
        """Have a server that gave no answer asked once more, in the background."""
        due_at_s = self._ask_again_at_s
        if due_at_s is None or time.monotonic() < due_at_s:
            return
        self._ask_again_at_s = None
        self._submit("a question", self._ask)

    def require_plugin(self) -> None:
        """Raise AgentKVServerError with the reason if the server cannot take tags."""
        if not self.has_plugin:
            raise AgentKVServerError(f"{self.missing}; needed because of on_missing_server='raise'")

    def warn_once(self) -> None:
        """Say once per process that calls to this server go out untouched, and why."""
        if not self._is_warned:
            self._is_warned = True
            logger.warning("agentkv: %s. Calls go out untouched.", self.missing)

    def send_tool_event(self, job_id: str, event: ToolEvent) -> None:
        """Tell the server about a tool, in the background."""
        self._submit(f"a tool event of {job_id}", partial(self.api.send_tool_event, job_id, event))

    def release(self, job_id: str) -> None:
        """Free the job on the server, in the background."""
        self._submit(f"the release of {job_id}", partial(self.api.release, job_id))

    def _submit(self, what: str, send: Callable[[], object]) -> None:
        feedback.submit(feedback.Delivery(self.api.root_url, what, send))

    def _ask(self) -> None:
        try:
            info = self.api.info()
        except AgentKVServerError as error:
            self.missing = f"no agentkv plugin found at {self.api.root_url} ({error})"
            if _is_passing(error):
                self._ask_again_at_s = time.monotonic() + ASK_AGAIN_AFTER_S
            return
        spoken = info.get("wire_version")
        if spoken != WIRE_VERSION:
            self.missing = (
                f"the server at {self.api.root_url} speaks agentkv wire version {spoken!r}, "
                f"this client {WIRE_VERSION}"
            )
            return
        self.info = info


def _is_passing(error: AgentKVServerError) -> bool:
    """True when the failure says nothing about the plugin: down, busy, a key to be renewed."""
    if isinstance(error, StatusError):
        return error.status in _PASSING_STATUSES or error.status >= 500
    return isinstance(error, NoAnswerError)


# The process id is part of the key: a forked child must not meet a lock its parent held.
_known: dict[tuple[int, str, str | None], KnownServer] = {}


def known_server(url: str, credential: str | None) -> KnownServer:
    """The server behind a URL as seen with this key: the same object every time."""
    key = (os.getpid(), url, credential)
    server = _known.get(key)
    return server or _known.setdefault(key, KnownServer(ServerAPI(url, api_key=credential)))


def forget_servers() -> None:
    """Forget what servers said, so that each is asked anew (for tests, or after a redeploy)."""
    _known.clear()
