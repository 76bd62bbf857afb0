"""Sends tool events and releases to servers in the background; `server` hands them over.

One daemon thread per server takes deliveries from a bounded queue, in order, so that a server that
hangs delays no other. A delivery that keeps failing is dropped, with one warning per server: the
agent never waits and never breaks. Knows nothing about jobs, or how a server is reached.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from agentkv.client.transport import close_connections, in_time, is_transient, without_password
from agentkv.errors import AgentKVServerError, NoAnswerError, NoThreadError, StatusError
from agentkv.visible import visible

logger = logging.getLogger(__name__)

MAX_QUEUED = 1_000
MAX_ATTEMPTS = 4
MAX_RETRYING_S = 5.0
FIRST_WAIT_S = 0.1
FLUSH_S = 2.0
EXIT_S = 1.5
"""The end of the interpreter waits this long, for all servers together; with what else it does an
agent ends within 2 s of one without agentkv."""
DELIVERY_S = 10.0
"""Longest time for one attempt; connecting, sending and each part of the answer have 3 s each."""
MAX_HANGING = 4
"""Attempts of one server that may run on beyond that, each in a thread that waits for bytes."""

_GONE = 404  # the server does not know the job (any more), so it holds nothing for it


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call to make; it raises AgentKVServerError, and `name` is what warnings call it.

    is_release: it frees memory, so that a full queue keeps it.
    client: the SDK client that it goes by, kept alive until then.
    """

    call: Callable[[], object]
    name: str
    is_release: bool = False
    client: Any = None


class FeedbackSender:
    """The queue of one server and the thread that empties it, started by the first delivery."""

    def __init__(self, *, max_queued: int = MAX_QUEUED, deadline_s: float = DELIVERY_S) -> None:
        self._max_queued = max_queued
        self._deadline_s = deadline_s
        self._num_running = 0
        # Not queue.Queue: gevent and eventlet replace it by one without `join` on a deadline.
        self._changed = threading.Condition()
        self._queued: deque[Delivery] = deque()
        self._num_unsent = 0
        # re-entered where the garbage collector ends a job in here
        self._start_lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._is_silent = False
        self._warned: set[str] = set()

    def submit(self, delivery: Delivery) -> None:
        """Queue a delivery; never waits.

        A full queue drops it, but drops its oldest tool event for a release. If no thread can
        start, the delivery stays in the queue and the next one tries again.
        """
        with self._changed:
            dropped = self._make_room_for(delivery)
            if dropped is not delivery:
                self._queued.append(delivery)
                self._num_unsent += 1
                self._changed.notify_all()
        if dropped is not None:
            self._warn_of_drop(dropped, f"{self._max_queued} deliveries are waiting already")
        if self._thread is None:
            try:
                self._start()
            except RuntimeError as error:
                self._warn_once(
                    "agentkv found no free thread for %s (%s). It waits, and the next delivery "
                    "tries again; the agent is not affected.",
                    delivery.name,
                    error,
                )

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent or dropped.

        False if that takes longer than `timeout_s`, or if no thread can start.
        """
        if self._thread is None and self.num_waiting:
            try:
                self._start()
            except RuntimeError:
                return False
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_unsent, timeout_s)

    @property
    def num_waiting(self) -> int:
        """Deliveries neither sent nor dropped yet."""
        return self._num_unsent

    def _make_room_for(self, delivery: Delivery) -> Delivery | None:
        """The delivery to drop so that this one fits: None, a queued tool event, or this one."""
        if len(self._queued) < self._max_queued:
            return None
        if delivery.is_release:
            for index, queued in enumerate(self._queued):
                if not queued.is_release:
                    del self._queued[index]
                    self._num_unsent -= 1
                    return queued
        return delivery

    def _start(self) -> None:
        """Start the thread, unless it runs; RuntimeError if the system has no thread to spare."""
        # Imported here and not by the thread: a child forked in mid-import keeps half a module, and
        # a program that looks into sys.modules, as openai-agents 0.24 does, must not find one.
        import httpx  # noqa: F401
        import tenacity  # noqa: F401

        with self._start_lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._deliver_all, name="agentkv-feedback", daemon=True
                )
                Context().run(thread.start)  # in ours it would keep the current job alive
                self._thread = thread

    def _deliver_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued)
                delivery = self._queued.popleft()
            try:
                self._deliver(delivery)
            except Exception as error:
                self._warn_of_drop(delivery, error)
            finally:
                del delivery  # or the client it went by would live until the next one
                with self._changed:
                    self._num_unsent -= 1
                    self._changed.notify_all()

    def _deliver(self, delivery: Delivery) -> None:
        import tenacity

        num_attempts = 1 if self._is_silent else MAX_ATTEMPTS
        attempts = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(num_attempts), tenacity.stop_after_delay(MAX_RETRYING_S)
            ),
            wait=tenacity.wait_exponential(multiplier=FIRST_WAIT_S, max=1.0),
            # an attempt that still runs is not made a second time
            retry=tenacity.retry_if_exception(
                lambda error: is_transient(error) and not self._num_running
            ),
            reraise=True,
        )
        try:
            attempts(self._attempt, delivery)
        except AgentKVServerError as error:
            self._is_silent = isinstance(error, NoAnswerError)
            if not (isinstance(error, StatusError) and error.status == _GONE):
                raise
        else:
            self._is_silent = False

    def _attempt(self, delivery: Delivery) -> None:
        """Make the call within the deadline."""

        def call() -> None:
            self._count_running(1)
            try:
                delivery.call()
            finally:
                self._count_running(-1)

        if self._num_running >= MAX_HANGING:
            raise NoAnswerError(f"{MAX_HANGING} earlier calls have no complete answer yet")
        try:
            in_time(call, self._deadline_s, thread_name="agentkv-delivery")
        except NoThreadError:
            # Python 3.12 starts none once the interpreter ends; this one runs on
            call()

    def _count_running(self, change: int) -> None:
        with self._changed:
            self._num_running += change

    def _warn_of_drop(self, delivery: Delivery, reason: object) -> None:
        self._warn_once(
            "agentkv dropped %s (%s); further drops for this server are not reported. "
            "The agent is not affected; the server frees the job when its TTL runs out.",
            delivery.name,
            reason,
        )

    def _warn_once(self, message: str, *values: object) -> None:
        level = logging.DEBUG if message in self._warned else logging.WARNING
        self._warned.add(message)
        logger.log(level, message, *(visible(without_password(str(value))) for value in values))


_senders: dict[tuple[int, str], FeedbackSender] = {}
"""The senders by process id and server: a parent's thread does not run in a forked child."""

_flushing_at_exit: set[int] = set()
"""The ids of the processes that flush when they end."""

before_exit: list[Callable[[], None]] = []
"""Called when a process ends, before its last flush."""

_exits_by_s: dict[int, float] = {}
"""When the end of a process waits no longer, by process id."""


def sender_to(root_url: str) -> FeedbackSender:
    """The sender of a server in this process: the same object every time."""
    key = (os.getpid(), root_url)
    sender = _senders.get(key)
    if sender is None:
        flush_when_process_ends()
        sender = _senders.setdefault(key, FeedbackSender())
    return sender


def flush(timeout_s: float = FLUSH_S) -> bool:
    """Wait until the feedback of this process is sent or dropped; False on time-out."""
    deadline_s = time.monotonic() + timeout_s
    return all(sender.flush(deadline_s - time.monotonic()) for sender in _senders_here().values())


def _senders_here() -> dict[str, FeedbackSender]:
    """The senders of this process, by server."""
    here = os.getpid()
    return {server: sender for (pid, server), sender in list(_senders.items()) if pid == here}


def flush_when_process_ends() -> None:
    """Register the flush at exit, however this process was started."""
    here = os.getpid()
    if here in _flushing_at_exit:
        return
    _flushing_at_exit.add(here)
    atexit.unregister(flush_at_exit)  # a forked child has inherited its parent's
    atexit.register(flush_at_exit)
    workers = sys.modules.get("multiprocessing.util")
    if workers is not None:  # a worker that it forks leaves by os._exit, past atexit
        workers.Finalize(None, flush_at_exit, exitpriority=10)


def flush_at_exit() -> None:
    """End what is open in a process that ends, and wait for its feedback; all who call this wait
    EXIT_S together."""
    for end in before_exit:
        end()
    exits_by_s = _exits_by_s.setdefault(os.getpid(), time.monotonic() + EXIT_S)
    if not flush(exits_by_s - time.monotonic()):
        for server, sender in _senders_here().items():
            if sender.num_waiting:
                logger.warning(
                    "agentkv: the process ends before %d deliveries reached %s; "
                    "agentkv.flush(timeout_s) waits for them. The server frees a job by itself.",
                    sender.num_waiting,
                    without_password(server),
                )
                del _senders[os.getpid(), server]  # may run twice in a process: warn only once
    close_connections()
