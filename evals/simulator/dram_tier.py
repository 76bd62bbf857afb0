"""A second tier of KV in DRAM, behind vLLM's own interface for such tiers (KVConnectorBase_V1).

The scheduler loads `DramConnector` by its dotted path; run.py sets its size, engine.py runs its
loads over a `PcieLink`. Copying out costs nothing here, as in vLLM's native offloading, where it
runs during the computation. A prompt whose blocks are only in DRAM waits until they are loaded.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

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


class DramTier:
    """The blocks in DRAM. Least recently used contexts are evicted first, each from its end."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._held: OrderedDict[Any, None] = OrderedDict()

    def put(self, block_hashes: Sequence[Any]) -> None:
        """Hold these blocks, or refresh them; later blocks of a context count as used earlier,
        since without the first ones they are worth nothing."""
        for block_hash in reversed(block_hashes):
            self._held[block_hash] = None
            self._held.move_to_end(block_hash)
        while len(self._held) > self._num_blocks:
            self._held.popitem(last=False)

    def num_held(self, block_hashes: Sequence[Any]) -> int:
        """Number of blocks held, from the first up to the first that is missing."""
        for index, block_hash in enumerate(block_hashes):
            if block_hash not in self._held:
                return index
        return len(block_hashes)


class DramConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM's classes count as Any
    """The scheduler's side of the tier."""

    takes_offload_limit = True
    """It heeds `max_offload_tokens`, as vLLM's OffloadingConnector does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tier = DramTier(0)
        self._block_tokens = 1
        self._requests: dict[str, Any] = {}
        self._num_computed: dict[str, int] = {}
        self.loads: list[tuple[str, int]] = []
        """(request, blocks) of each load that the last step began; the engine clears it."""

    def configure(self, tier: DramTier, block_tokens: int) -> None:
        """Set the size of the tier, before the first request."""
        self._tier = tier
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
        """Tokens in DRAM that continue those on the GPU; they are loaded between steps."""
        first = num_computed_tokens // self._block_tokens
        last = (request.num_tokens - 1) // self._block_tokens
        num_blocks = self._tier.num_held(request.block_hashes[first:last])
        return num_blocks * self._block_tokens, num_blocks > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self.loads.append((request.request_id, num_external_tokens // self._block_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Copy preempted contexts out; called before the step counts as computed."""
        for request_id in sorted(scheduler_output.preempted_req_ids or ()):
            self._store(self._requests[request_id], self._num_computed.get(request_id, 0))
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._requests[request_id]
            self._num_computed[request_id] = request.num_computed_tokens + num_tokens
        return KVConnectorMetadata()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Copy the whole context out."""
        self._store(request, request.num_tokens - 1)
        self._requests.pop(request.request_id, None)
        self._num_computed.pop(request.request_id, None)
        return False, None

    def _store(self, request: Any, num_tokens: int) -> None:
        limit_tokens = (request.kv_transfer_params or {}).get("max_offload_tokens", num_tokens)
        self._tier.put(request.block_hashes[: min(num_tokens, limit_tokens) // self._block_tokens])

    def _of_the_worker(self, *args: Any, **kwargs: Any) -> None:
        """Stand in for vLLM's abstract worker side: the simulated engine runs the loads."""
        raise NotImplementedError

    start_load_kv = wait_for_layer_load = save_kv_layer = wait_for_save = _of_the_worker


class PcieLink:
    """Loads from DRAM to the GPU, one after the other at `bytes_per_s`, while the GPU computes."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        self._loads: deque[tuple[float, str]] = deque()

    def start(self, request_id: str, num_bytes: int, now_s: float) -> None:
        """Queue a load behind those under way."""
        self._free_s = max(self._free_s, now_s) + num_bytes / self._bytes_per_s
        self._loads.append((self._free_s, request_id))

    @property
    def next_done_s(self) -> float:
        """Time at which the next load ends; infinity if there is none."""
        return self._loads[0][0] if self._loads else math.inf

    def take_done(self, now_s: float) -> list[str]:
        """Requests whose loads have ended by now."""
        done = []
        while self.next_done_s <= now_s:
            done.append(self._loads.popleft()[1])
        return done
