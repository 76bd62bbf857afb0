"""Requests that wait for their first blocks: who is overtaken too often, and who waits too long.

AdmissionController reports to these and asks them.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

from agentkv.policies.jobs import Turn

DISCOUNT_PRIOR = 0.025
"""Added to both sums of IdleKVDiscount, as a share of `memory_s`, so that little of either decides
nothing. With `memory_s` ten break-even times that is a quarter of one: without it the first seconds
decide, with four times as much short jobs wait too long (studies/policy_grid/findings.md)."""


class StarvationGuard:
    """Finds new jobs, and requests without a job, that too many later turns have overtaken.

    They wait here in order of arrival until they have blocks; only the first can become starved.
    Every operation is O(1).
    """

    def __init__(self) -> None:
        self.waiting: OrderedDict[str, int] = OrderedDict()
        """Arrival numbers of those that wait, by request."""
        self.arrival_of = self.waiting.get
        self._starved: set[str] = set()
        self._num_overtakes = 0

    def add(self, request_id: str, order: int) -> None:
        """A request with this arrival number waits from now on."""
        self.waiting[request_id] = order

    def admitted(self, request_id: str) -> None:
        """A request has its blocks; if it was the first, the count starts again for the next."""
        if request_id == self._first:
            self._num_overtakes = 0
        self._stop_waiting(request_id)

    def ended(self, request_id: str) -> None:
        """A request is over; if it never had blocks, the next one inherits the count."""
        self._stop_waiting(request_id)
        self._starved.discard(request_id)

    def _stop_waiting(self, request_id: str) -> None:
        self.waiting.pop(request_id, None)
        if not self.waiting:
            self._num_overtakes = 0

    @property
    def _first(self) -> str | None:
        return next(iter(self.waiting), None)

    def overtaken_by(self, order: int, max_overtakes: float) -> str | None:
        """A request with this arrival number, which opens no job, has its blocks.

        Returns the first waiting request if that makes it starved.
        """
        first = self._first
        if first is None or first in self._starved or order <= self.waiting[first]:
            return None
        self._num_overtakes += 1
        if self._num_overtakes <= max_overtakes:
            return None
        self._starved.add(first)
        return first

    def is_starved(self, request_id: str) -> bool:
        """Return whether a request is starved, from then until it ends, also while it runs."""
        return request_id in self._starved


class AgingQueue:
    """Finds turns that have waited for their first blocks longer than the patience.

    A turn that is preempted later does not age again: measured, going first each time lets such
    turns take memory from each other (studies/policy_grid/findings.md). O(1) on average.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: deque[Turn] = deque()

    def add(self, turn: Turn) -> None:
        """A turn has arrived and waits from now on."""
        self._waiting.append(turn)

    def pop_aged_out(self, now_s: float) -> Turn | None:
        """Return a turn that still waits after `patience_s`, each once; None if there is none."""
        while self._waiting and now_s - self._waiting[0].arrived_s > self._patience_s:
            turn = self._waiting.popleft()
            if turn.admitted_s is None and turn.request_id in turn.job.live:
                return turn
        return None


class IdleKVDiscount:
    """Compares what pinning idle KV has cost with what restoring contexts has cost.

    Both are sums in seconds of the whole pool: idle memory while a new job was held back, and
    recomputing (see RestoreCost.pool_seconds) or the memory that waited for a tier's loads. The
    past decays by 1/e in `memory_s`.
    """

    def __init__(self) -> None:
        self._held_s = 0.0
        self._restored_s = 0.0
        self._memory_s = 0.0
        self._now_s = 0.0
        self._asked_s = 0.0
        self._is_held_back = False

    def asked(
        self, now_s: float, *, is_held_back: bool, idle_share: float, memory_s: float
    ) -> None:
        """A new job is admitted or held back; pins hold `idle_share` of the pool, 0 to 1."""
        elapsed_s = now_s - self._asked_s
        self._memory_s = memory_s
        self._decay(now_s)
        if self._is_held_back:
            self._held_s += idle_share * elapsed_s
        self._asked_s = now_s
        self._is_held_back = is_held_back

    def left(self) -> None:
        """A job that was held back waits no more; if others do, they ask again."""
        self._is_held_back = False

    def restored(self, now_s: float, pool_seconds: float) -> None:
        """Record the cost of restoring an evicted context, in pool-seconds."""
        self._decay(now_s)
        self._restored_s += pool_seconds

    def _decay(self, now_s: float) -> None:
        kept = math.exp((self._now_s - now_s) / self._memory_s) if self._memory_s else 0.0
        self._restored_s *= kept
        self._held_s *= kept
        self._now_s = now_s

    @property
    def idle_kv_weight(self) -> float:
        """Share of idle KV that counts when a new job asks for memory: restoring cost over holding
        cost, at most 1."""
        prior_s = DISCOUNT_PRIOR * self._memory_s
        held_s = self._held_s + prior_s
        return min(1.0, (self._restored_s + prior_s) / held_s) if held_s else 1.0
