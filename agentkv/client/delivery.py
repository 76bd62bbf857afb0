"""Delivers tool events and releases to servers in the background, off the agent's way.

One daemon thread a process takes them from a bounded queue, in order. A delivery that keeps failing
is dropped: the agent never waits and never breaks.
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
from dataclasses import dataclass, field
from typing import Any

from agentkv.errors import NoAnswerError

logger = logging.getLogger(__name__)

MAX_QUEUED = 1_000
MAX_ATTEMPTS = 4
MAX_RETRYING_S = 5.0
FIRST_WAIT_S = 0.1
SILENT_S = 5.0
"""A server that let a call time out gets none for this long: others' deliveries wait behind it."""
FLUSH_S = 2.0
EXIT_S = 1.2
"""The end of the interpreter waits this long; with what else it does an agent ends within 2 s of
one without agentkv."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One call to make: `send`, which raises AgentKVServerError, and `drop` if it failed for good.

    server: the root of the URL that it goes to. is_release: it frees memory, so it goes first.
    """

    server: str
    send: Callable[[], None]
    drop: Callable[[object], None]
    is_release: bool = False
    is_done: threading.Event = field(default_factory=threading.Event)


class Sender:
    """The queue of a process and the thread that empties it, started by the first delivery."""

    def __init__(self, *, max_queued: int = MAX_QUEUED, silent_s: float = SILENT_S) -> None:
        self._max_queued = max_queued
        self._silent_s = silent_s
        # Not queue.Queue: gevent and eventlet replace it by one without `join` on a deadline.
        self._changed = threading.Condition()
        self._queued: deque[Delivery] = deque()
        self.num_unsent = 0
        self.silent_until_s: dict[str, float] = {}
        """Servers whose last call had no answer, and when they are called again."""
        self.flushes_at_exit = False
        self.exit_by_s: float | None = None
        """When the end of the process waits no longer."""
        self._thread: threading.Thread | None = None

    def submit(self, delivery: Delivery) -> None:
        """Queue a delivery; never waits.

        A full queue drops it, but drops its oldest delivery for a release. If no thread can start,
        the delivery stays in the queue and the next one tries again.
        """
        dropped = None
        with self._changed:
            if len(self._queued) >= self._max_queued:
                dropped = self._queued.popleft() if delivery.is_release else delivery
            if dropped is not delivery:
                self._queued.append(delivery)
                self.num_unsent += dropped is None
                self._changed.notify_all()
        if dropped is not None:
            dropped.drop(f"{self._max_queued} deliveries are waiting already")
            dropped.is_done.set()
        self._start()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent or dropped; False if that takes longer than `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        # Python 3.12 starts no thread once the interpreter ends: this one delivers
        while self._queued and not self._start() and time.monotonic() < deadline_s:
            self._deliver_next()
        with self._changed:
            left_s = max(0.0, deadline_s - time.monotonic())
            return self._changed.wait_for(lambda: not self.num_unsent, left_s)

    def _start(self) -> bool:
        """Start the thread, unless it runs; False if the system has no thread to spare."""
        # Imported here and not by the thread: a child forked in mid-import keeps half a module, and
        # a program that looks into sys.modules, as openai-agents 0.24 does, must not find one.
        import httpx  # noqa: F401
        import tenacity  # noqa: F401

        with self._changed:
            if self._thread is not None:
                return True
            thread = threading.Thread(target=self._run, name="agentkv-delivery", daemon=True)
            try:
                Context().run(thread.start)  # in ours it would keep the current job alive
            except RuntimeError:
                return False
            self._thread = thread
            return True

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued)
            self._deliver_next()

    def _deliver_next(self) -> None:
        delivery = self._queued.popleft()
        try:
            self._deliver(delivery)
        except Exception as error:
            delivery.drop(error)
        delivery.is_done.set()
        del delivery  # or the client it goes by would live until the next one
        with self._changed:
            self.num_unsent -= 1
            self._changed.notify_all()

    def _deliver(self, delivery: Delivery) -> None:
        import tenacity

        until_s = self.silent_until_s.get(delivery.server)
        if until_s is not None and time.monotonic() < until_s:
            raise NoAnswerError("an earlier call was not answered in time")
        max_attempts = MAX_ATTEMPTS if until_s is None else 1
        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(max_attempts)
            | tenacity.stop_after_delay(MAX_RETRYING_S),
            wait=tenacity.wait_exponential(multiplier=FIRST_WAIT_S, max=1.0),
            retry=tenacity.retry_if_exception(lambda error: getattr(error, "may_pass", False)),
            reraise=True,
        )
        try:
            attempts(delivery.send)
        except NoAnswerError as error:
            silent_s = 0.0 if error.may_pass else self._silent_s
            self.silent_until_s[delivery.server] = time.monotonic() + silent_s
            raise
        self.silent_until_s.pop(delivery.server, None)


_sender = Sender()
before_exit: list[Callable[[], None]] = []
"""Called when a process ends, before its last flush."""


def _begin_empty() -> None:
    """A forked child has neither its parent's thread nor what that has to send."""
    global _sender
    _sender = Sender()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_empty)


def submit(delivery: Delivery) -> None:
    """Have a call made in the background; never waits."""
    _sender.submit(delivery)


def flush(timeout_s: float = FLUSH_S) -> bool:
    """Wait until the reports of this process are sent or dropped; False on time-out."""
    return _sender.flush(timeout_s)


def forget_failures() -> None:
    """Call servers again that did not answer."""
    _sender.silent_until_s.clear()


def flush_when_process_ends() -> None:
    """Register the flush at exit, however this process was started."""
    if _sender.flushes_at_exit:
        return
    _sender.flushes_at_exit = True
    atexit.unregister(flush_at_exit)  # a forked child has inherited its parent's
    atexit.register(flush_at_exit)
    workers: Any = sys.modules.get("multiprocessing.util")
    if workers is not None:  # a worker that it forks leaves by os._exit, past atexit
        workers.Finalize(None, flush_at_exit, exitpriority=10)


def flush_at_exit() -> None:
    """End what is open in a process that ends, and wait for its reports; all who call this wait
    EXIT_S together."""
    for end in before_exit:
        end()
    _sender.exit_by_s = _sender.exit_by_s or time.monotonic() + EXIT_S
    if not flush(_sender.exit_by_s - time.monotonic()) and _sender.num_unsent:
        logger.warning(
            "agentkv: the process ends before %d reports were sent; agentkv.flush(timeout_s) waits "
            "for them. The server frees a job by itself.",
            _sender.num_unsent,
        )
        _sender.num_unsent = 0  # may run twice in a process: warn only once
