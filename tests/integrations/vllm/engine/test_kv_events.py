"""vLLM's KV events stay true under our policies, on its real scheduler: routers can rely on them.

A router follows a server's cache by BlockStored and BlockRemoved. `make soak-tier` plays 100,000
random events, `python -m tests.integrations.vllm.engine.test_kv_events N` that number.
"""

import sys
from collections import Counter
from typing import Any

import pytest
from vllm.distributed.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventPublisher,
    KVEventBatch,
)
from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash
from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key

from tests.soak.agents import Agents

BLOCK_BYTES = 4096
DEVICE, DRAM = "GPU", "CPU"


class Subscriber(EventPublisher):
    """Follows the cache as a router does: blocks by hash, for each medium.

    A hash may be stored on several blocks, since two requests can compute the same prefix at once:
    it is gone when it has been removed as often as it was stored.
    """

    def __init__(self) -> None:
        self.blocks: dict[str | None, Counter[Any]] = {DEVICE: Counter(), DRAM: Counter()}
        self.num_events = 0

    def publish(self, events: KVEventBatch) -> None:
        for event in events.events:
            self.take(event)

    def take(self, event: Any) -> None:
        self.num_events += 1
        if isinstance(event, AllBlocksCleared):
            self.blocks[DEVICE].clear()
        elif isinstance(event, BlockStored):
            self.blocks[event.medium].update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            self.blocks[event.medium].subtract(event.block_hashes)
            assert all(self.blocks[event.medium][each] >= 0 for each in event.block_hashes)

    def shutdown(self) -> None:
        """There is nothing to close."""


class World(Agents):
    """Random agents on an engine with KV events, and a subscriber."""

    def __init__(self, seed: str, **given: Any) -> None:
        super().__init__(seed, num_blocks=24, max_num_seqs=4, has_kv_events=True, **given)
        self.subscriber = self.engine.scheduler.kv_event_publisher = Subscriber()
        self.seen: dict[Any, bytes] = {}
        """Hashes that events name, with those of the pool and the tier."""

    @property
    def num_events(self) -> int:
        """Those that the server has published."""
        return self.subscriber.num_events

    def step(self) -> Any:
        output = super().step()
        self.compare()
        return output

    def compare(self) -> None:
        """The subscriber's view, with what is published next, is the block pool and the tier."""
        pool = self.engine.pool
        for event in pool.take_events():
            self.subscriber.take(event)
        held: Counter[Any] = Counter()
        for block in pool.blocks:
            if block.block_hash is not None:
                own_hash = get_block_hash(block.block_hash)
                named = maybe_convert_block_hash(own_hash)
                self.seen[named] = own_hash
                held[named] += 1
        assert +self.subscriber.blocks[DEVICE] == held
        connector = self.engine.scheduler.connector
        if connector is not None:
            for event in connector.take_events():
                self.subscriber.take(event)

    def compare_tier(self) -> None:
        """Each hash that was in the pool is in DRAM if and only if the subscriber says so."""
        manager = self.engine.scheduler.connector.connector_scheduler.manager
        in_dram = self.subscriber.blocks[DRAM]
        assert any(in_dram.values())
        for named, own_hash in self.seen.items():
            key = make_offload_key(own_hash, 0)
            is_hit = manager.lookup(key, ReqContext(req_id="")) is LookupResult.HIT
            assert is_hit == (in_dram[named] > 0)


WORLDS = [
    (is_async, tier_blocks, policy)
    for is_async in (False, True)
    for tier_blocks, policy in ((0, "continuum"), (0, "agentkv"), (60, "agentkv"))
]


def play(num_events: int, *, seed: int, is_async: bool, tier_blocks: int, policy: str) -> World:
    """Play one world to its end, with all that its subscriber has to agree with."""
    offload_bytes = tier_blocks * BLOCK_BYTES
    world = World(f"{seed}", is_async=is_async, offload_bytes=offload_bytes, policy=policy)
    world.play(num_events)
    world.finish()
    if tier_blocks:
        assert world.engine.num_blocks_loaded > 0
        world.compare_tier()
    ends = world.engine.totals["pin_ends_total"]
    assert ends["pressure"] > 0
    assert ends["returned"] > 0
    return world


@pytest.mark.parametrize(("is_async", "tier_blocks", "policy"), WORLDS)
def test_a_subscriber_s_view_equals_the_block_pool(
    is_async: bool, tier_blocks: int, policy: str
) -> None:
    """After each step of a random run the blocks that events tell of are those of the pool, and at
    its end those in DRAM are those of the tier."""
    play(1500, seed=1, is_async=is_async, tier_blocks=tier_blocks, policy=policy)


if __name__ == "__main__":
    for is_async, tier_blocks, policy in WORLDS:
        share = -(-int(sys.argv[1]) // len(WORLDS))
        world = play(share, seed=1, is_async=is_async, tier_blocks=tier_blocks, policy=policy)
        kind = "async" if is_async else "sync"
        num_loaded = world.engine.num_blocks_loaded
        print(
            f"{policy}, {kind}, tier of {tier_blocks} blocks: {world.subscriber.num_events} events "
            f"agree, {num_loaded} blocks loaded",
            flush=True,
        )
