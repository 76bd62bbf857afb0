"""Shares the pool among clients: while several hold or want KV, each has the same share of it.

AdmissionController asks it who is above the share, and lets those give way. A single client, as
without an API server, is never above. Knows blocks only as numbers, and nothing of policies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from agentkv.policies.pins import Pin

from . import Host
from .costs import BlocksPerToken
from .pin_lifecycle import PinTable


class LiveRequest(NamedTuple):
    """A request in the engine, by its client, arrival number and time of arrival."""

    client: str
    order: int
    arrived_s: float


class ClientShares:
    """What each client of one engine holds, compared with its share.

    A client holds the blocks of its pins, each counted once, and those of its running requests. Its
    share is the pool over the number of clients with a pin or a request in the engine, or the
    setting `client_share` of the pool.
    """

    def __init__(
        self, host: Host, pins: PinTable[Any], blocks_per_token: BlocksPerToken, share: float | None
    ) -> None:
        self.share_blocks = 0.0
        """Blocks that each client may hold, as last measured."""
        self._above: frozenset[str] = frozenset()
        self._held: Counter[str] = Counter()
        self._host = host
        self._pins = pins
        self._blocks_per_token = blocks_per_token
        self._share = share
        self._requests: dict[str, LiveRequest] = {}
        self._num_live: Counter[str] = Counter()

    def arrived(self, request_id: str, client: str, order: int) -> None:
        """A request has entered the engine; `order` is its arrival number."""
        self._requests[request_id] = LiveRequest(client, order, self._host.clock())
        self._num_live[client] += 1

    def ended(self, request_id: str) -> None:
        """A request has left the engine."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._num_live[request.client] -= 1
            if not self._num_live[request.client]:
                del self._num_live[request.client]

    def get(self, request_id: str) -> LiveRequest | None:
        """A request in the engine."""
        return self._requests.get(request_id)

    @property
    def are_many(self) -> bool:
        """True if several clients hold or want KV. O(1)."""
        return len(self._num_live.keys() | self._pins.clients) > 1

    def measure(self) -> frozenset[str]:
        """The clients that hold more than their share now; none while there is one client.

        O(running requests and clients), O(1) with one client.
        """
        self._above = frozenset()
        if self.are_many:
            clients = self._num_live.keys() | self._pins.clients
            held = Counter({client: self._pins.num_blocks_of(client) for client in clients})
            for request_id, num_tokens in self._host.running_tokens():
                if request_id in self._requests:
                    client = self._requests[request_id].client
                    held[client] += round(self._blocks_per_token.blocks(num_tokens))
            share = 1.0 / len(clients) if self._share is None else self._share
            self._held, self.share_blocks = held, share * self._host.pool.num_blocks
            self._above = frozenset(name for name in held if held[name] > self.share_blocks)
        return self._above

    def num_spare_blocks(self, client: str) -> float:
        """Blocks that a client may hold in addition, as last measured."""
        return self.share_blocks - self._held[client]

    def surplus_pins(self, pins: Iterable[Pin[Any]], client: str) -> Sequence[Pin[Any]]:
        """Of `pins`, in order, those that bring the other clients that were above their share when
        last measured down to it."""
        surplus = {name: -self.num_spare_blocks(name) for name in self._above if name != client}
        found = []
        for pin in pins:
            if surplus.get(pin.client, 0.0) > 0.0:
                surplus[pin.client] -= len(pin.blocks)
                found.append(pin)
        return found
