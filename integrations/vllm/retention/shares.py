"""Shares memory and service equally among clients, while there are several.

AdmissionController asks it who is above its share of the pool, and lets those give way; the waiting
queue asks it which client is next. A single client, as without an API server, is never above and
always next. Knows blocks only as numbers, and nothing of policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from agentkv.policies.base import AllocationRequest, Policy
from agentkv.policies.pins import Pin

from . import ClientPlace, Host
from .costs import BlocksPerToken
from .pins import PinTable

OUTPUT_COST = 2.0
"""Service of a generated token, in prompt tokens. Source: VTC (arXiv 2401.00588), its default."""
MAX_IDLE_COUNTERS = 1000
"""Counters kept of clients that do not wait; beyond that the least are dropped, which come back to
where the others are by then."""

SAME_PLACE: ClientPlace = (False, 0.0)


@dataclass(slots=True)
class LiveRequest:
    """Says whose a request in the engine is, when it arrived, and what it has paid for."""

    client: str
    order: int
    arrived_s: float
    num_prompt_tokens: int
    charged_tokens: int | None = None
    """Tokens of its context that are paid for, or were in the cache; None before its first
    blocks."""


class ServiceCounters:
    """Counts the service that each client has had: tokens by cost.

    A client that waits again is lifted to the least of those that wait, so that neither being away
    nor a trickle of requests, each served at once, saves up anything. Source: VTC (arXiv
    2401.00588, OSDI 2024), algorithm 2, except that tokens found in the cache are free.
    """

    def __init__(self) -> None:
        self._by_client: dict[str, float] = {}
        self.view: Mapping[str, float] = MappingProxyType(self._by_client)
        self._num_waiting: Counter[str] = Counter()
        self._floor = 0.0
        """Where a client starts that is new, or has been away for long."""

    def __getitem__(self, client: str) -> float:
        return self._by_client.get(client, self._floor)

    def add(self, client: str, amount: float) -> None:
        """Charge a client for service."""
        self._by_client[client] = self._by_client.get(client, self._floor) + amount

    def waits(self, client: str) -> None:
        """Note that a request waits for its first blocks. O(waiting clients) for a first one."""
        if client not in self._num_waiting:
            least = min(map(self.__getitem__, self._num_waiting), default=self._floor)
            self._floor = max(self._floor, least)
            self._by_client[client] = max(self._by_client.get(client, self._floor), self._floor)
        self._num_waiting[client] += 1

    def left(self, client: str) -> None:
        """Note that a request has its first blocks, or is gone without. O(1) on average."""
        self._num_waiting[client] -= 1
        if self._num_waiting[client]:
            return
        del self._num_waiting[client]
        if not self._num_waiting:
            self._floor = max(self._floor, self._by_client.get(client, self._floor))
        most = len(self._num_waiting) + MAX_IDLE_COUNTERS
        if len(self._by_client) > 2 * most:
            for name in sorted(self._by_client, key=self.__getitem__)[:-most]:
                del self._by_client[name]


class ClientShares:
    """Compares what each client of one engine holds and has had with its share.

    A client holds the blocks of its pins, each counted once, and those of its running requests. Its
    share of the pool is an equal part among all clients with a pin or a request in the engine, or
    the setting `client_share`. Among clients that are all above their share, or all within it, the
    one with the least service is next.
    """

    def __init__(
        self, host: Host, pins: PinTable[Any], blocks_per_token: BlocksPerToken, share: float | None
    ) -> None:
        self.service = ServiceCounters()
        self.is_short = False
        """Memory is short, or requests were left waiting: then places count."""
        self._above: frozenset[str] = frozenset()
        self._held: Counter[str] = Counter()
        self._share_blocks = 0.0
        """Blocks that a client may hold, as last measured."""
        self._host = host
        self._pins = pins
        self._blocks_per_token = blocks_per_token
        self._share = share
        self._requests: dict[str, LiveRequest] = {}
        self.get = self._requests.get
        self._num_live: Counter[str] = Counter()

    def arrived(
        self, request_id: str, client: str, order: int, num_prompt_tokens: int, now_s: float
    ) -> None:
        """Note that a request has entered the engine; `order` is its arrival number."""
        request = LiveRequest(client, order, now_s, num_prompt_tokens)
        self._requests[request_id] = request
        self._num_live[client] += 1
        self.service.waits(client)

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """Let a request's client pay for the prompt, but for the tokens that were in the cache.
        What a preempted request computes again is free."""
        request = self._requests.get(request_id)
        if request is not None and request.charged_tokens is None:
            request.charged_tokens = request.num_prompt_tokens
            self.service.add(request.client, request.num_prompt_tokens - hit_tokens)
            self.service.left(request.client)

    def ended(self, request_id: str, num_tokens: int) -> str:
        """Charge for a request that has left the engine, with `num_tokens` of prompt and reply;
        returns its client."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return ""
        if request.charged_tokens is None:
            self.service.left(request.client)
        self._pay_outputs(request, num_tokens)
        self._num_live[request.client] -= 1
        if not self._num_live[request.client]:
            del self._num_live[request.client]
        return request.client

    def _pay_outputs(self, request: LiveRequest, num_tokens: int) -> None:
        if request.charged_tokens is not None and num_tokens > request.charged_tokens:
            new_tokens = num_tokens - request.charged_tokens
            self.service.add(request.client, OUTPUT_COST * new_tokens)
            request.charged_tokens = num_tokens

    @property
    def are_many(self) -> bool:
        """Return whether several clients hold or want KV. O(1)."""
        return len(self._num_live) > 1 or len(self._num_live.keys() | self._pins.clients) > 1

    def place(self, client: str) -> ClientPlace:
        """Return a client's place, of which the smallest is next; all are one if nothing is short.

        O(1). It changes with all that is served, so it is asked for when it is used.
        """
        if not self.is_short:
            return SAME_PLACE
        return client in self._above, self.service[client]

    def measure(self) -> frozenset[str]:
        """Return the clients that hold more than their share now; none while there is one client.

        O(running requests and clients), O(1) with one client.
        """
        self._above = frozenset()
        if self.are_many:
            self._look()
            clients = self._held.keys()
            self._above = frozenset(name for name in clients if self.num_spare_blocks(name) < 0.0)
        return self._above

    def _look(self) -> None:
        """Find what each client holds and may hold, and let it pay for what it has generated."""
        clients = self._num_live.keys() | self._pins.clients
        held = Counter({client: self._pins.num_blocks_of(client) for client in clients})
        for request_id, num_tokens in self._host.running_tokens():
            request = self._requests.get(request_id)
            if request is not None:
                held[request.client] += self._blocks_per_token.blocks(num_tokens)
                self._pay_outputs(request, num_tokens)
        share = self._share
        if share is None:
            share = 1.0 / max(1, len(clients))
        self._held, self._share_blocks = held, share * self._host.pool.num_blocks

    def describe(self) -> list[dict[str, Any]]:
        """Describe each client that has a request or a pin: what it holds and has had."""
        self._look()
        return [
            {
                "client": client,
                "requests": self._num_live[client],
                "held_blocks": self._held[client],
                "share_blocks": round(self._share_blocks),
                "service": round(self.service[client]),
            }
            for client in sorted(self._held)
        ]

    def num_spare_blocks(self, client: str) -> float:
        """Return the blocks that a client may hold in addition, as last measured."""
        return self._share_blocks - self._held[client]

    def surplus_pins(self, pins: Iterable[Pin[Any]], client: str) -> Sequence[Pin[Any]]:
        """Return pins of the clients above their share, just enough to bring each down to it."""
        surplus = {name: -self.num_spare_blocks(name) for name in self._above if name != client}
        found = []
        for pin in pins:
            if surplus.get(pin.job_id.client, 0.0) > 0.0:
                surplus[pin.job_id.client] -= len(pin.blocks)
                found.append(pin)
        return found

    def pins_that_yield(
        self,
        policy: Policy,
        pins: Sequence[Pin[Any]],
        request_id: str,
        request: AllocationRequest,
    ) -> Sequence[Pin[Any]]:
        """Pins to give up where several clients hold or want KV: first what each client holds above
        its share, then those that the policy gives up.

        A waiting request of a client above its share takes none of a client that is not. One of a
        client that is not takes from all other clients once it has waited out the patience.
        """
        live, above = self.get(request_id), self.measure()
        client = "" if live is None else live.client
        if request.has_blocks or request.runs_alone:
            given = policy.pins_that_yield(pins, request)
            return sorted(given, key=lambda pin: pin.job_id.client not in above)
        if client in above:
            own = [pin for pin in pins if pin.job_id.client == client or pin.job_id.client in above]
            return policy.pins_that_yield(tuple(own), request)
        first = self.surplus_pins(pins, client)
        patience_s = policy.settings.patience_s
        if live is not None and self._host.clock() - live.arrived_s > patience_s:
            first = [
                *first,
                *(pin for pin in pins if pin.job_id.client != client and pin not in first),
            ]
        # Not the exclusive ones: those were counted when another request may have held them, too.
        missing_blocks = request.missing_blocks - sum(len(pin.blocks) for pin in first)
        if missing_blocks <= 0:
            return first
        chosen = set(map(id, first))
        rest = policy.pins_that_yield(
            tuple(pin for pin in pins if id(pin) not in chosen),
            replace(request, missing_blocks=missing_blocks),
        )
        return [*first, *rest] if rest else []
