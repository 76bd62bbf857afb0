"""vLLM's KV events stay true under our policies, on its real scheduler: routers can rely on them.

A router follows a server's cache by BlockStored and BlockRemoved. `make soak-tier` plays 100,000
random events, `python -m tests.integrations.vllm.engine.test_kv_events N` that number.
"""

from __future__ import annotations

import random
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

from agentkv.protocol import ToolEvent
from agentkv.testing.stepped_engine import prompt_of
from tests.integrations.vllm.harness import Engine

BLOCK_BYTES = 4096
DEVICE, DRAM = "GPU", "CPU"
JOBS = "abcdef"


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


class World:
    """Random jobs on one engine with KV events, and a subscriber."""

    def __init__(self, seed: int, *, is_async: bool, tier_blocks: int, policy: str) -> None:
        self.random = random.Random(seed)
        self.engine = Engine(
            num_blocks=40,
            max_num_seqs=4,
            is_async=is_async,
            policy=policy,
            cold_start_samples=2,
            has_kv_events=True,
            offload_bytes=tier_blocks * BLOCK_BYTES,
        )
        self.subscriber = self.engine.scheduler.kv_event_publisher = Subscriber()
        self.histories: dict[str, list[int]] = {}
        self.seen: dict[Any, bytes] = {}
        """Hashes that events name, with those of the pool and the tier."""

    def play(self, num_events: int) -> None:
        """Play until the server has published that number of events; compare after each step."""
        actions = [self.arrive] * 4 + [self.abort, self.wait, self.release, self.tool, self.reset]
        while self.subscriber.num_events < num_events:
            self.random.choice(actions)()
            for _ in range(self.random.randrange(8)):
                self.engine.step()
                self.compare()

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

    def arrive(self) -> None:
        job = self.random.choice(JOBS)
        history = self.histories.get(job, prompt_of(self.random.randrange(1, 90)))
        if self.random.random() < 0.1:
            history = history[: len(history) // 2]  # the agent cuts its history back
        salt = self.random.randrange(3)  # few, so that jobs share prefixes
        prompt = (history + prompt_of(self.random.randrange(1, 60), salt=salt))[:300]
        for _ in range(self.random.choice([1, 1, 1, 2])):
            self.engine.add(
                prompt,
                max_tokens=self.random.randrange(1, 40),
                reply=self.random.choice([None, "```bash\nls\n```", "```bash\nmake\n```"]),
                job_id=job,
                is_last_step=int(self.random.random() < 0.15),
            )
        self.histories[job] = prompt if len(prompt) < 250 else []

    def abort(self) -> None:
        live = sorted(self.engine.scheduler.requests)
        if live:
            self.engine.abort(self.random.choice(live))

    def wait(self) -> None:
        self.engine.wait(self.random.choice([0.5, 2.1, 31.0]))

    def release(self) -> None:
        self.engine.retention.release(self.random.choice(JOBS))

    def tool(self) -> None:
        event = ToolEvent(state=self.random.choice(["started", "finished"]), command="make it")
        self.engine.retention.tool_signal(self.random.choice(JOBS), event)

    def reset(self) -> None:
        if self.random.random() < 0.05 and not self.engine.in_flight:
            # vLLM's connector cannot take that back from a request whose load is under way
            can_preempt = self.engine.scheduler.connector is None
            self.engine.scheduler.reset_prefix_cache(reset_running_requests=can_preempt)


WORLDS = [
    (is_async, tier_blocks, policy)
    for is_async in (False, True)
    for tier_blocks, policy in ((0, "continuum"), (0, "agentkv"), (60, "agentkv"))
]


def play(num_events: int, *, seed: int, is_async: bool, tier_blocks: int, policy: str) -> World:
    """Play one world to its end, with all that its subscriber has to agree with."""
    world = World(seed, is_async=is_async, tier_blocks=tier_blocks, policy=policy)
    world.play(num_events)
    world.engine.run(max_steps=3000)
    world.compare()
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
    play(1500, seed=7, is_async=is_async, tier_blocks=tier_blocks, policy=policy)


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
