"""Tells the user's KV listeners when the KV of a job is gone for good, each in its own thread.

The main thread only queues; a listener that blocks, raises or cannot reach its receiver costs
counts and at most one line of log.
"""

from __future__ import annotations

import logging
import math
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkv.errors import InputError, SettingsError
from agentkv.events import Aborted, Arrived, Closed, KVFreed
from agentkv.guard import Fault, Guard
from agentkv.listeners import FreeReason, KVFree, KVListener, UndeliveredError, make_listener
from agentkv.protocol import JobKey
from agentkv.watchers import EventStream

from .counters import Counters

MAX_WAITING_FREES = 10_000
"""Frees queued for one listener; further ones are dropped."""
RETRIES_S = (0.5, 1.0, 2.0)
"""Seconds before each further attempt to deliver a batch."""
MAX_REQUESTS = 1000
"""Requests of one job that a free names, the last ones."""
CLOSING_S = 2.0
"""Longest wait of a closing engine for its listeners together."""

logger = logging.getLogger(__name__)


class Outbox:
    """One listener, the frees that wait for it, and the daemon thread that calls it."""

    def __init__(
        self,
        name: str,
        listener: KVListener,
        report: Callable[[Fault | int], None],
        retries_s: Sequence[float] = RETRIES_S,
    ) -> None:
        """`report` takes a fault, or the number of frees dropped, from any thread."""
        self._name = name
        self._report = report
        self._max_batch = listener.max_batch
        self._retries_s = retries_s
        self._listener = listener
        # nobody waits for it
        self._guard = Guard(listener, self._failed, max_answer_s=math.inf)
        self._take: Callable[[Sequence[KVFree]], UndeliveredError | None] = self._guard.asking(
            "on_frees", self._attempt, lambda frees: None
        )
        self._has_warned = False
        self._frees: queue.SimpleQueue[KVFree | None] = queue.SimpleQueue()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agentkv-{name}", daemon=True)
        self._thread.start()

    def put(self, free: KVFree) -> None:
        """Queue a free; never blocks and never raises."""
        if self._thread.is_alive() and self._frees.qsize() < MAX_WAITING_FREES:
            self._frees.put(free)
        else:
            self._drop(1, f"{MAX_WAITING_FREES} frees wait for it")

    def close(self) -> None:
        """Ask for the end: no further attempt waits."""
        self._is_closing.set()
        self._frees.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait until the queued frees are delivered or dropped."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if self._guard.is_off:
                self._drop(len(batch), "it is switched off")
                continue
            self._deliver(batch)

    def _next_batch(self) -> tuple[KVFree, ...] | None:
        """The frees that wait, `max_batch` at most; None at the end."""
        first = self._frees.get()
        if first is None:
            return None
        batch = [first]
        while len(batch) < self._max_batch and not self._frees.empty():
            free = self._frees.get()
            if free is None:
                self._frees.put(None)  # for the next call
                break
            batch.append(free)
        return tuple(batch)

    def _attempt(self, batch: Sequence[KVFree]) -> UndeliveredError | None:
        """Why a batch was not delivered; None if it was. Another error costs a fault."""
        try:
            self._listener.on_frees(batch)
        except UndeliveredError as error:
            return error
        return None

    def _deliver(self, batch: Sequence[KVFree]) -> None:
        for wait_s in (*self._retries_s, None):
            undelivered = self._take(batch)
            if undelivered is None:
                self._has_warned = False
                return
            if wait_s is None or self._is_closing.wait(wait_s):
                break
        self._drop(len(batch), str(undelivered))

    def _drop(self, num_frees: int, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "agentkv: the listener %s misses frees (%s); those that it misses are counted in "
                "agentkv:listener_drops_total",
                *(self._name, why),
            )
        self._report(num_frees)

    def _failed(self, fault: Fault) -> None:
        if self._guard.num_faults == 1:
            logger.error(
                "agentkv: the listener %s failed; further faults are counted in "
                "agentkv:listener_faults_total",
                self._name,
                exc_info=fault.error,
            )
        if fault.is_last:
            logger.error("agentkv: the listener %s is switched off: it failed often", self._name)
        self._report(fault)


class Listeners:
    """Tells KV listeners when the KV of a job is gone for good: its requests, each named once.

    Only the end of a job, or the abort of its only turn, is terminal. A swap to a KV tier and back
    is none, and blocks that a job loses while it goes on are announced with its end.
    """

    def __init__(
        self,
        named: Mapping[str, Mapping[str, Any]],
        counters: Counters,
        stream: EventStream,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`named` are the options of each listener; `wake` is called, from any thread, when there
        is something to count. Raises SettingsError for a listener that cannot be made."""
        self._counters = counters
        self._emit = stream.emit
        self._wake = wake
        self._num_frees = 0
        self._requests: dict[JobKey, dict[str, None]] = {}
        """Requests of each job since its last free, in order."""
        self._news: deque[Fault | int] = deque()
        try:
            made = {name: make_listener(name, options) for name, options in named.items()}
        except InputError as error:
            raise SettingsError(f"setting 'listeners': {error}") from error
        self._outboxes = [Outbox(name, each, self._note) for name, each in made.items()]

    def _note(self, news: Fault | int) -> None:
        self._news.append(news)
        self._wake()

    def on_arrived(self, event: Arrived) -> None:
        job = event.turn.job
        requests = self._requests.get(event.job_id)
        if requests is None:
            requests = self._requests[event.job_id] = {}
            if job.is_inferred and job.num_turns <= 2:
                # The request that opened the job came before it was known to be one.
                requests[reply_id(job.own_id.removeprefix("inferred-"))] = None
        requests[reply_id(event.turn.request_id)] = None
        if len(requests) > MAX_REQUESTS:
            del requests[next(iter(requests))]

    def on_aborted(self, event: Aborted) -> None:
        turn, job = event.turn, event.turn.job
        is_closed_next = turn.is_last_step or job.is_released
        if not (job.live or turn.is_side_request or is_closed_next):
            self._free(event.job_id, "aborted")

    def on_closed(self, event: Closed) -> None:
        self._free(event.job_id, event.reason)
        self._requests.pop(event.job_id, None)

    def _free(self, job_id: JobKey, reason: FreeReason) -> None:
        requests = self._requests.get(job_id)
        if not requests:
            return
        self._num_frees += 1
        free = KVFree(self._num_frees, job_id.own_id, tuple(requests), reason, job_id.client)
        requests.clear()
        self._emit(KVFreed, job_id, free.number, reason, list(free.request_ids))
        for outbox in self._outboxes:
            outbox.put(free)

    def count_news(self) -> None:
        """Count faults and drops, on the main thread. O(1) if there are none."""
        while self._news:
            news = self._news.popleft()
            if isinstance(news, int):
                self._counters.add("listener_drops_total", amount=news)
            else:
                self._counters.add("listener_faults_total")

    def close(self) -> None:
        """Deliver what is queued, for CLOSING_S at most."""
        for outbox in self._outboxes:
            outbox.close()
        for outbox in self._outboxes:
            outbox.join(CLOSING_S / max(1, len(self._outboxes)))
        self.count_news()


_CHILD = re.compile(r"^\d+_(?=(?:chat)?cmpl-)")
_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")
_PROMPT_NUMBER = re.compile(r"^(cmpl-.*)-\d+$")


def reply_id(request_id: str) -> str:
    """The `id` of the reply that a request of the engine belongs to.

    vLLM's API server puts the number of a choice before it, and behind it that of a completion's
    prompt and eight random digits (vllm/v1/engine/input_processor.py:371, 0.32.0).
    """
    request_id = _RANDOM_END.sub("", _CHILD.sub("", request_id))
    return _PROMPT_NUMBER.sub(r"\1", request_id)
