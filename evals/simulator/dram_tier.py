"""A second tier of KV in DRAM, behind vLLM's own interface for such tiers (KVConnectorBase_V1).

The scheduler loads `DramConnector` by its dotted path, run.py sets its size, and the engine runs
its `Transfers` while the GPU computes. As in vLLM's native offloading, blocks are copied out once
they are computed, and a prompt whose blocks are only in DRAM waits until they are loaded, and
before that until they have been copied out.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

CONNECTOR = {
    "kv_connector": "DramConnector",
    "kv_connector_module_path": __name__,
    "kv_role": "kv_both",
}
"""The fields of vLLM's KVTransferConfig that install the tier."""
Item = TypeVar("Item")


class DramTier:
    """The blocks in DRAM. Least recently used contexts are evicted first, each from its end."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._held: OrderedDict[Any, None] = OrderedDict()
        self._on_their_way: set[Any] = set()

    def put(self, block_hashes: Sequence[Any]) -> list[Any]:
        """Hold these blocks, or refresh them; later blocks of a context count as used earlier,
        since without the first ones they are worth nothing.

        Returns the new ones that there is room for, on their way until a call of `arrived`.
        """
        new = [block_hash for block_hash in block_hashes if block_hash not in self._held]
        for block_hash in reversed(block_hashes):
            self._held[block_hash] = None
            self._held.move_to_end(block_hash)
        while len(self._held) > self._num_blocks:
            self._held.popitem(last=False)
        new = [block_hash for block_hash in new if block_hash in self._held]
        self._on_their_way.update(new)
        return new

    def arrived(self, block_hashes: Sequence[Any]) -> None:
        """These blocks have been copied out."""
        self._on_their_way.difference_update(block_hashes)

    def num_held(self, block_hashes: Sequence[Any]) -> int | None:
        """Number of blocks held, from the first up to the first that is missing; None while one of
        these is on its way."""
        num_held = 0
        while num_held < len(block_hashes) and block_hashes[num_held] in self._held:
            num_held += 1
        is_waiting = not self._on_their_way.isdisjoint(block_hashes[:num_held])
        return None if is_waiting else num_held


class DramConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM's classes count as Any
    """The scheduler's side of the tier."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tier = DramTier(0)
        self._block_tokens = 1
        self._requests: dict[str, Any] = {}
        self._num_stored: dict[str, int] = {}
        self.loads: list[tuple[str, int]] = []
        """(request, blocks) of each load that the last step began; the engine clears it."""
        self.stores: list[list[Any]] = []
        """Blocks that have to be copied out, once the step under way has computed them; the engine
        clears it."""

    def configure(self, tier: DramTier, block_tokens: int) -> None:
        """Set the size of the tier, before the first request."""
        self.tier = tier
        self._block_tokens = block_tokens

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a lost copy costs a cache miss, nothing else."""
        return False

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Tokens in DRAM that continue those on the GPU; they are loaded between steps.

        None if the request must wait: one of their blocks is on its way to DRAM.
        """
        first = num_computed_tokens // self._block_tokens
        last = (request.num_tokens - 1) // self._block_tokens
        num_blocks = self.tier.num_held(request.block_hashes[first:last])
        if num_blocks is None:
            return None, False
        return num_blocks * self._block_tokens, num_blocks > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.loads.append((request.request_id, num_external_tokens // self._block_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Copy out what the step computes."""
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._requests[request_id]
            self._store(request, request.num_computed_tokens + num_tokens)
        return KVConnectorMetadata()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Copy out what is left of the context, and refresh all of it."""
        self._num_stored.pop(request.request_id, None)
        self._store(request, request.num_tokens - 1)
        self._num_stored.pop(request.request_id)
        self._requests.pop(request.request_id, None)
        return False, None

    def _store(self, request: Any, num_tokens: int) -> None:
        first = self._num_stored.get(request.request_id, 0)
        blocks = request.block_hashes[first : num_tokens // self._block_tokens]
        self._num_stored[request.request_id] = first + len(blocks)
        if new := self.tier.put(blocks):
            self.stores.append(new)

    def _of_the_worker(self, *args: Any, **kwargs: Any) -> None:
        """Stand in for vLLM's abstract worker side: the simulated engine runs the loads."""
        raise NotImplementedError

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _of_the_worker


class PcieLink(Generic[Item]):
    """Transfers of one direction, one after the other at `bytes_per_s`, while the GPU computes."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._under_way: deque[tuple[float, Item]] = deque()

    def start(self, item: Item, num_bytes: int, now_s: float) -> None:
        """Queue a transfer behind those under way."""
        self._free_s = max(self._free_s, now_s) + num_bytes / self._bytes_per_s
        self._under_way.append((self._free_s, item))

    @property
    def next_done_s(self) -> float:
        """Time at which the next transfer ends; infinity if there is none."""
        return self._under_way[0][0] if self._under_way else math.inf

    def take_done(self, now_s: float) -> list[Item]:
        """What has been transferred by now."""
        done = []
        while self.next_done_s <= now_s:
            done.append(self._under_way.popleft()[1])
        return done


class Transfers:
    """The transfers of one engine's tier, over a link each way; none without a tier."""

    def __init__(self, connector: Any, bytes_per_s: float, block_bytes: int) -> None:
        self._connector = connector
        self._block_bytes = block_bytes
        self.loads: PcieLink[str] = PcieLink(bytes_per_s)
        """Loads, by request."""
        self.stores: PcieLink[list[Any]] = PcieLink(bytes_per_s)
        """Blocks on their way to the tier."""

    def start_loads(self, now_s: float) -> list[tuple[str, int]]:
        """Start the loads that the last step began: (request, blocks) each."""
        if self._connector is None:
            return []
        started: list[tuple[str, int]] = self._connector.loads
        self._connector.loads = []
        for request_id, num_blocks in started:
            self.loads.start(request_id, num_blocks * self._block_bytes, now_s)
        return started

    def start_stores(self, now_s: float) -> None:
        """Start to copy out what the last step computed."""
        if self._connector is not None:
            for blocks in self._connector.stores:
                self.stores.start(blocks, len(blocks) * self._block_bytes, now_s)
            self._connector.stores.clear()

    def take_stored(self, now_s: float) -> bool:
        """Let waiting turns load what has been copied out by now; True if anything has."""
        stored = self.stores.take_done(now_s)
        for blocks in stored:
            self._connector.tier.arrived(blocks)
        return bool(stored)

    @property
    def next_done_s(self) -> float:
        """Time at which the next transfer ends; infinity if there is none."""
        return min(self.loads.next_done_s, self.stores.next_done_s)
