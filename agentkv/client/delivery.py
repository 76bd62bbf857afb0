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
"""A server that did not answer gets nothing for this long: others' deliveries wait behind it."""
FLUSH_S = 2.0
EXIT_S = 1.2
"""The end of the interpreter waits this long; with what else it does an agent ends within 2 s of
one without agentkv."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One call to make: `send`, which raises AgentKVServerError, and `drop` if it failed for good.

    server: the root of the URL that it goes to.
    """

    server: str
    send: Callable[[], None]
    drop: Callable[[object], None]
    is_done: threading.Event = field(default_factory=threading.Event)


class Sender:
    """The queue of a process and the thread that empties it, started by the first delivery."""

    def __init__(self) -> None:
        self.begin_empty()

    def begin_empty(self) -> None:
        """Begin with nothing, as in a forked child, which lacks its parent's thread."""
        # Not queue.Queue: gevent and eventlet replace it by one without `join` on a deadline.
        self._changed = threading.Condition()
        self._queued: deque[Delivery] = deque()
        self._num_unsent = 0
        self.silent_until_s: dict[str, float] = {}
        """Servers whose last call had no answer, and when they are called again."""
        self._thread: threading.Thread | None = None
        self._flushes_at_exit = False
        self._exit_by_s: float | None = None

    def submit(self, delivery: Delivery) -> threading.Event:
        """Queue a delivery, and return what is set once it was sent or dropped.

        Never waits, and drops the oldest one if the queue is full. If no thread can start, it stays
        in the queue and the next one tries again.
        """
        with self._changed:
            oldest = self._queued.popleft() if len(self._queued) == MAX_QUEUED else None
            self._queued.append(delivery)
            self._num_unsent += oldest is None
            self._changed.notify_all()
        if oldest is not None:
            oldest.drop(f"{MAX_QUEUED} deliveries are waiting already")
            oldest.is_done.set()
        self._start()
        return delivery.is_done

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is sent or dropped; False if that takes longer than `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        # Python 3.12 starts no thread once the interpreter ends: this one delivers
        while self._queued and not self._start() and time.monotonic() < deadline_s:
            self._deliver_next()
        with self._changed:
            left_s = max(0.0, deadline_s - time.monotonic())
            return self._changed.wait_for(lambda: not self._num_unsent, left_s)

    def flush_when_process_ends(self) -> None:
        """Register the flush at exit, however this process was started."""
        if self._flushes_at_exit:
            return
        self._flushes_at_exit = True
        atexit.unregister(self.flush_at_exit)  # a forked child has inherited its parent's
        atexit.register(self.flush_at_exit)
        workers: Any = sys.modules.get("multiprocessing.util")
        if workers is not None:  # a worker that it forks leaves by os._exit, past atexit
            workers.Finalize(None, self.flush_at_exit, exitpriority=10)

    def flush_at_exit(self) -> None:
        """End what is open in a process that ends, and wait for its reports: EXIT_S at most, in all
        calls of this together."""
        for end in before_exit:
            end()
        self._exit_by_s = self._exit_by_s or time.monotonic() + EXIT_S
        if not self.flush(self._exit_by_s - time.monotonic()) and self._num_unsent:
            logger.warning(
                "agentkv: the process ends before %d reports were sent; agentkv.flush(timeout_s) "
                "waits for them. The server frees a job by itself.",
                self._num_unsent,
            )
            self._num_unsent = 0  # it may run twice: warn only once

    def _start(self) -> bool:
        """Start the thread, unless it runs; False if the system has no thread to spare."""
        # Imported here and not by the thread: a child forked in mid-import keeps half a module, and
        # a program that looks into sys.modules, as openai-agents 0.24 does, must not find one.
        import httpx  # noqa: F401
        import tenacity  # noqa: F401

        with self._changed:
            if self._thread is None:
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
            if time.monotonic() < self.silent_until_s.get(delivery.server, 0.0):
                raise NoAnswerError("an earlier call had no answer")
            self._send(delivery)
        except Exception as error:
            delivery.drop(error)
        delivery.is_done.set()
        del delivery  # or the client it goes by would live until the next one
        with self._changed:
            self._num_unsent -= 1
            self._changed.notify_all()

    def _send(self, delivery: Delivery) -> None:
        import tenacity

        attempts = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(MAX_ATTEMPTS)
            | tenacity.stop_after_delay(MAX_RETRYING_S),
            wait=tenacity.wait_exponential(multiplier=FIRST_WAIT_S, max=1.0),
            retry=tenacity.retry_if_exception(lambda error: getattr(error, "may_pass", False)),
            reraise=True,
        )
        try:
            attempts(delivery.send)
        except NoAnswerError:
            self.silent_until_s[delivery.server] = time.monotonic() + SILENT_S
            raise


before_exit: list[Callable[[], None]] = []
"""Called when the process ends, before its last flush."""
sender = Sender()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=sender.begin_empty)


def flush(timeout_s: float = FLUSH_S) -> bool:
    """Wait until the reports of this process are sent or dropped; False on time-out."""
    return sender.flush(timeout_s)
