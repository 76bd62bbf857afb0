"""What this process knows about the servers it has met: has each one the agentkv plugin?

A server is asked once, by the first call that goes there and the way that call goes. A server that
did not answer then is asked again in the background, so that the agent waits for it at most once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from agentkv.client import feedback
from agentkv.client.context import job_made_current
from agentkv.client.transport import (
    CALL_TIMEOUT_S,
    NoAnswerError,
    Reach,
    ServerAPI,
    StatusError,
    root_of,
)
from agentkv.errors import AgentKVServerError
from agentkv.protocol import WIRE_VERSION, ToolEvent

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER_S = 30.0

_REFUSALS = frozenset({401, 403})
_PASSING_STATUSES = _REFUSALS | {408, 429}


class KnownServer:
    """One server, how it is reached, and whether tags may be sent to it.

    Safe to share between threads.
    """

    def __init__(self, url: str) -> None:
        self.root_url = root_of(url)
        self.info: dict[str, Any] | None = None
        self.missing: str | None = None
        self._reach = Reach()
        self._lock = threading.Lock()
        self._ask_again_at_s: float | None = None
        self._refused_headers: Mapping[str, str] | None = None
        self._is_warned = False

    @property
    def is_unasked(self) -> bool:
        """True until the first answer, or the first lack of one."""
        return self.info is None and self.missing is None

    @property
    def has_plugin(self) -> bool:
        """True when the server said that it understands the tags."""
        return self.info is not None

    def reach_by(self, client: Any, headers: Mapping[str, str], *, is_direct: bool = True) -> None:
        """Reach it so from now on; see Reach. One that refused another key is to be asked again."""
        if not self._reach.is_by(client, headers):
            self._reach = Reach(client, headers, is_direct=is_direct)
        if self._refused_headers is not None and self._reach.headers() != self._refused_headers:
            self._refused_headers = self.missing = None

    def ask(self, *, insist: bool = False) -> None:
        """Ask the server unless it was asked already; waits for CALL_TIMEOUT_S at most.

        insist asks anew as long as the plugin was not found.
        """
        if not self._lock.acquire(timeout=CALL_TIMEOUT_S):
            self._note_silence()
            return
        try:
            if self._is_to_be_asked(insist):
                self._learn_from(partial(_in_time, self._api().info))
        finally:
            self._lock.release()

    async def ask_async(self, *, insist: bool = False) -> None:
        """The same on a loop, by the asynchronous client that reaches the server, if one does."""
        import anyio.to_thread  # not asyncio's: the caller may run on trio

        if not self._reach.is_async:
            try:
                await anyio.to_thread.run_sync(partial(self.ask, insist=insist))
            except RuntimeError as error:
                self._note_failure(_no_thread(error))
            return
        is_mine = False
        with anyio.move_on_after(CALL_TIMEOUT_S):
            while not (is_mine := self._lock.acquire(blocking=False)):
                await anyio.sleep(0.005)
        if not is_mine:
            self._note_silence()
            return
        try:
            if self._is_to_be_asked(insist):
                try:
                    info = await self._reach.info(self.root_url)
                except AgentKVServerError as error:
                    self._note_failure(error)
                else:
                    self._note(info)
        finally:
            self._lock.release()

    def ask_again_if_due(self) -> None:
        """Have a server that gave no answer asked once more, in the background."""
        due_at_s = self._ask_again_at_s
        if due_at_s is None or time.monotonic() < due_at_s:
            return
        self._ask_again_at_s = None
        self._submit("a question", partial(self._learn_from, self._api().info))

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
        send = partial(self._api().send_tool_event, job_id, event)
        self._submit(f"a tool event of {job_id}", send)

    def release(self, job_id: str) -> None:
        """Free the job on the server, in the background."""
        self._submit(f"the release of {job_id}", partial(self._api().release, job_id))

    def _submit(self, what: str, send: Callable[[], object]) -> None:
        feedback.submit(feedback.Delivery(self.root_url, what, send))

    def _api(self) -> ServerAPI:
        return self._reach.api(self.root_url)

    def _is_to_be_asked(self, insist: bool) -> bool:
        return self.is_unasked or (insist and not self.has_plugin)

    def _learn_from(self, question: Callable[[], dict[str, Any]]) -> None:
        try:
            info = question()
        except AgentKVServerError as error:
            self._note_failure(error)
        else:
            self._note(info)

    def _note_silence(self) -> None:
        """Somebody else asks, on a loop that has stopped perhaps, and has had no answer either."""
        if self.is_unasked:
            self._note_failure(NoAnswerError(f"no answer within {CALL_TIMEOUT_S:g} s"))

    def _note_failure(self, error: AgentKVServerError) -> None:
        self.missing = f"no agentkv plugin found at {self.root_url} ({error})"
        if isinstance(error, StatusError) and error.status in _REFUSALS:
            self._refused_headers = self._reach.headers()
        if _is_passing(error):
            self._ask_again_at_s = time.monotonic() + ASK_AGAIN_AFTER_S

    def _note(self, info: dict[str, Any]) -> None:
        spoken = info.get("wire_version")
        if spoken == WIRE_VERSION:
            self.info = info
            return
        self.missing = (
            f"the server at {self.root_url} speaks agentkv wire version {spoken!r}, "
            f"this client {WIRE_VERSION}"
        )


def _in_time(question: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer, or NoAnswerError after CALL_TIMEOUT_S, however slowly its bytes drip in."""
    answer: Future[dict[str, Any]] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except Exception as error:
            answer.set_exception(error)

    try:
        with job_made_current(None):  # or a thread that hangs would keep the job alive
            threading.Thread(target=ask, name="agentkv-question", daemon=True).start()
    except RuntimeError as error:
        raise _no_thread(error) from error
    try:
        return answer.result(CALL_TIMEOUT_S)
    except TimeoutError as error:
        raise NoAnswerError(f"no answer within {CALL_TIMEOUT_S:g} s") from error


def _no_thread(error: RuntimeError) -> NoAnswerError:
    return NoAnswerError(f"no free thread to ask it from: {error}")


def _is_passing(error: AgentKVServerError) -> bool:
    """True when the failure says nothing about the plugin: down, busy, a key to be renewed."""
    if isinstance(error, StatusError):
        return error.status in _PASSING_STATUSES or error.status >= 500
    return isinstance(error, NoAnswerError)


# The process id is part of the key: a forked child must not meet a lock its parent held.
_known: dict[tuple[int, str], KnownServer] = {}


def known_server(url: str) -> KnownServer:
    """The server behind a URL: the same object every time."""
    key = (os.getpid(), root_of(url))
    server = _known.get(key)
    return server or _known.setdefault(key, KnownServer(url))


def forget_servers() -> None:
    """Forget what servers said, so that each is asked anew (for tests, or after a redeploy)."""
    _known.clear()
