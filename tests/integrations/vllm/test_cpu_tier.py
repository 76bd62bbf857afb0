"""The tier of the CPU build: what is copied where, and when it counts as done."""

from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from tests.cpu_tier import CPUTierWorker, Link
from tests.stepped_engine import Clock

PAGE_BYTES, NUM_BLOCKS, NUM_LAYERS = 8, 6, 2


def caches() -> CanonicalKVCaches:
    """Two layers of six blocks, whose bytes say which layer and block they are."""
    layers = [
        torch.arange(NUM_BLOCKS, dtype=torch.int8)[:, None].repeat(1, PAGE_BYTES) + 50 * layer
        for layer in range(NUM_LAYERS)
    ]
    return CanonicalKVCaches([CanonicalKVCacheTensor(layer, PAGE_BYTES) for layer in layers], [])


def worker_of(kv_caches: CanonicalKVCaches, clock: Clock, bytes_per_s: float = 1e9) -> Any:
    loads, stores = Link(bytes_per_s, 0.0, clock), Link(bytes_per_s, 0.0, clock)
    return CPUTierWorker(kv_caches, 4, loads=loads, stores=stores)


def in_cache(*blocks: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(list(blocks), group_sizes=[len(blocks)], block_indices=[0])


def in_tier(*chunks: int) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(list(chunks))


def test_blocks_come_back_into_other_blocks_in_every_layer() -> None:
    """Blocks 1 and 4 go to rows 3 and 0 of the tier, and back into blocks 5 and 2."""
    kv_caches, clock = caches(), Clock()
    worker = worker_of(kv_caches, clock)
    worker.submit_store(1, in_cache(1, 4), in_tier(3, 0))
    for layer in kv_caches.tensors:
        layer.tensor[1] = layer.tensor[4] = 99
    worker.submit_load(2, in_tier(3, 0), in_cache(5, 2), expedited=True)
    for number, layer in enumerate(kv_caches.tensors):
        blocks = [0, None, 4, 3, None, 1]
        expected = [99 if block is None else block + 50 * number for block in blocks]
        assert layer.tensor[:, 0].tolist() == expected


def test_latency_counts_for_each_transfer() -> None:
    """A link of 0.5 s and 10 bytes a second carries two transfers of 10 bytes in 3 s."""
    clock = Clock()
    link = Link(10.0, 0.5, clock)
    link.add(1, 10)
    link.add(2, 10)
    clock.now_s += 2.9
    assert [result.job_id for result in link.take_done(set())] == [1]
    clock.now_s += 0.1
    (result,) = link.take_done(set())
    assert (result.job_id, result.transfer_size, result.transfer_time) == (2, 10, 1.5)
