"""vLLM's waiting queue with a live order: job turns by rank, everything else as stock has it.

The scheduler installs it and moves requests when ranks change. Source: RequestQueue in
vllm/v1/core/sched/request_queue.py of vLLM 0.31 to 0.33.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from agentkv.policies.base import PREEMPTED, UNPINNED, Policy

from ..retention import IN_ORDER, ClientPlace, QueueRank
from ..retention.admission import AdmissionController

Entry = tuple[QueueRank, int, Request]


class RankedQueue(RequestQueue):
    """Keeps waiting requests in a heap for each client, by the rank of their job's turn.

    Next is the first request of a client: that of the best band, of these the one whose client has
    the best place, of these the one of the best rank. Requests without a job keep the order of
    vLLM's FCFS deque among themselves: appended ones by arrival, prepended ones (preempted or
    skipped) in front, the last prepended first. Without jobs it pops exactly what stock pops,
    unless several clients have different places.

    The head is latched from `peek_request` until it is popped or removed: `schedule()` peeks,
    allocates, then pops, and an allocation may end a pin and so change ranks in between.
    """

    def __init__(
        self,
        rank_of: Callable[[Request], QueueRank | None],
        client_of: Callable[[Request], str],
        place_of: Callable[[str], ClientPlace],
        arrivals: Iterator[int],
    ) -> None:
        """`rank_of` is None for a request without a job; those are numbered by `arrivals`. Places
        of clients are asked for with every look, ranks when they are said to have changed."""
        self._rank_of = rank_of
        self._client_of = client_of
        self._place_of = place_of
        self._arrivals = arrivals
        self._prepends = itertools.count(1)
        self._versions = itertools.count()
        self._heaps: dict[str, list[Entry]] = {}
        """Entries of each client that has a request here, superseded ones among them."""
        self._entries: dict[Request, tuple[QueueRank, int]] = {}
        self._num_waiting: Counter[str] = Counter()
        self._orders: dict[Request, int] = {}
        self._latched: Request | None = None

    def _push(self, request: Request, rank: QueueRank) -> None:
        client = self._client_of(request)
        if request not in self._entries:
            self._num_waiting[client] += 1
        version = next(self._versions)
        self._entries[request] = (rank, version)
        heapq.heappush(self._heaps.setdefault(client, []), (rank, version, request))
        self._compact(client)

    def add_request(self, request: Request) -> None:
        """Add a request at its rank, or behind all others without a job."""
        rank = self._rank_of(request)
        if rank is None:
            self._orders[request] = next(self._arrivals)
            rank = (IN_ORDER, UNPINNED, self._orders[request], 0)
        self._push(request, rank)

    def order_of(self, request: Request) -> int:
        """Return the arrival number of a request without a job, until `forget_order`."""
        return self._orders.get(request, 0)

    def forget_order(self, request: Request) -> None:
        """Forget the number of a request that has left the engine."""
        self._orders.pop(request, None)

    def prepend_request(self, request: Request) -> None:
        """Put a request back: at its rank, or in front of everything if it has no job."""
        rank = self._rank_of(request) or (IN_ORDER, PREEMPTED, -next(self._prepends), 0)
        self._push(request, rank)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Put several requests back, each in front of the one before it."""
        for request in requests:
            self.prepend_request(request)

    def rerank(self, request: Request) -> None:
        """Move a waiting request to its present rank. O(log n)."""
        entry = self._entries.get(request)
        rank = None if entry is None else self._rank_of(request)
        if entry is not None and rank is not None and rank != entry[0]:
            self._push(request, rank)

    def rerank_all(self) -> None:
        """Move every waiting request to its present rank. O(n log n)."""
        for request in list(self._entries):
            self.rerank(request)

    def peek_request(self) -> Request:
        """Return the request to serve next, the same until it is taken. O(clients) on average."""
        if self._latched is None:
            if not self._heaps:
                raise IndexError("peek from an empty queue")
            self._latched = min(self._firsts())[-1]
        return self._latched

    def _firsts(self) -> Iterator[tuple[int, ClientPlace, QueueRank, int, Request]]:
        """Yield the first request of each client, after what decides between them."""
        for client, heap in self._heaps.items():
            while not self._is_current(heap[0]):
                heapq.heappop(heap)
            rank, version, request = heap[0]
            yield rank[0], self._place_of(client), rank, version, request

    def pop_request(self) -> Request:
        """Take the request that `peek_request` shows."""
        request = self.peek_request()
        self._forget(request)
        return request

    def unlatch(self) -> None:
        """Let the next peek choose again; called at the start of a scheduling step."""
        self._latched = None

    def remove_request(self, request: Request) -> None:
        """Remove one request; raises ValueError if it is not queued."""
        if request not in self._entries:
            raise ValueError(f"request {request.request_id} is not in the queue")
        self._forget(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Remove those of `requests` that are queued."""
        for request in requests:
            if request in self._entries:
                self._forget(request)

    def _forget(self, request: Request) -> None:
        del self._entries[request]
        if request is self._latched:
            self._latched = None
        client = self._client_of(request)
        self._num_waiting[client] -= 1
        if self._num_waiting[client]:
            self._compact(client)
        else:
            del self._num_waiting[client], self._heaps[client]

    def _compact(self, client: str) -> None:
        """Drop superseded entries once they are the majority: O(1) on average."""
        heap = self._heaps[client]
        if len(heap) > 2 * self._num_waiting[client] + 64:
            self._heaps[client] = [entry for entry in heap if self._is_current(entry)]
            heapq.heapify(self._heaps[client])

    def _is_current(self, entry: Entry) -> bool:
        rank, version, request = entry
        return self._entries.get(request) == (rank, version)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        """Yield the requests as they are served if no place changes. O(n log n)."""
        places = {client: self._place_of(client) for client in self._heaps}
        keys = (
            (rank[0], places[self._client_of(request)], rank, version, request)
            for request, (rank, version) in self._entries.items()
        )
        return iter([key[-1] for key in sorted(keys)])


class RunningOrder:
    """Puts the next victim last among running requests: vLLM's FCFS preempts `running[-1]` (S:834).

    vLLM appends requests that it admits (S:1345): O(log n) for each of those, unless ranks have
    changed since.
    """

    def __init__(
        self, policy: Policy, admission: AdmissionController, order_of: Callable[[Request], int]
    ) -> None:
        """`order_of` gives the arrival number of a request without a job."""
        self._policy = policy
        self._admission = admission
        self._order_of = order_of
        self.is_sorted = False
        self.unplaced: set[str] = set()
        """Requests that vLLM has appended since they were sorted."""

    def _rank(self, request: Request) -> QueueRank:
        rank = self._admission.victim_rank(request.request_id)
        return (IN_ORDER, 1, self._order_of(request), 0) if rank is None else rank

    def sort(self, running: list[Request]) -> None:
        """Sort the running requests if the policy decides about victims."""
        unplaced, self.unplaced = self.unplaced, set()
        if not self._policy.sorts_running():
            return
        if not self._admission.has_running_turns:
            self.is_sorted = False
        elif not self.is_sorted:
            running.sort(key=self._rank)
            self.is_sorted = True
        else:
            appended = []
            while running and running[-1].request_id in unplaced:
                appended.append(running.pop())
            for request in reversed(appended):
                bisect.insort(running, request, key=self._rank)
