"""The tier of the CPU build: what is copied where, when it counts as done, what is refused."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from agentkv.errors import SetupError
from tests.cpu_tier import LATENCY_MS, CPUTierSpec, CPUTierWorker, Link, tier_flags
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


def done(worker: OffloadingWorker) -> list[int]:
    return [result.job_id for result in worker.get_finished() if result.success]


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


def test_a_transfer_is_done_when_the_link_has_carried_it() -> None:
    """Transfers of one direction follow each other, and wait for none of the other."""
    clock = Clock()
    link_bytes_per_s = NUM_LAYERS * PAGE_BYTES  # a block a second
    worker = worker_of(caches(), clock, link_bytes_per_s)
    worker.submit_store(1, in_cache(1, 2), in_tier(0, 1))
    worker.submit_store(2, in_cache(3), in_tier(2))
    worker.submit_load(3, in_tier(0), in_cache(4))
    seen = []
    for _ in range(4):
        clock.now_s += 1.0
        seen.append(done(worker))
    assert seen == [[3], [1], [2], []]


def test_what_vllm_waits_for_is_done_at_once() -> None:
    """Its blocks are about to be used otherwise, and its bytes have been copied."""
    worker = worker_of(caches(), Clock(), bytes_per_s=1.0)
    worker.submit_store(1, in_cache(1), in_tier(0))
    worker.submit_store(2, in_cache(2), in_tier(1))
    worker.wait({2})
    assert done(worker) == [2]
    assert done(worker) == []


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


@pytest.mark.parametrize(
    ("num_bytes", "blocks_per_chunk", "message"),
    [(100, 1, "holds no block of 4096 bytes"), (1 << 20, 2, "a chunk of 2 is asked for")],
)
def test_a_tier_that_cannot_work_is_refused(
    num_bytes: int, blocks_per_chunk: int, message: str
) -> None:
    """The error says what was asked for and what to do, before the first request."""
    config: Any = SimpleNamespace(
        extra_config={"cpu_bytes_to_use": num_bytes},
        enable_kv_cache_events=False,
        groups=(),
        model=SimpleNamespace(max_model_len=128),
        cache=SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk),
        parallel=SimpleNamespace(world_size=1),
        replicated_layout=False,
        worker_kv_bytes_per_block=4096,
    )
    given: OffloadingConfig = config
    with pytest.raises(SetupError, match=message):
        CPUTierSpec(given)


def test_vllm_takes_the_configuration_of_the_tier(model_config: Path) -> None:
    """The flags name vLLM's own connector of that size, our class and the link's speed."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    flags = ["--model", str(model_config), *tier_flags(2, **{LATENCY_MS: 3.0})]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    args = EngineArgs.from_cli_args(parser.parse_args(flags))
    assert args.kv_offloading_size == 2.0
    extra = args.kv_transfer_config.kv_connector_extra_config
    module = importlib.import_module(extra["spec_module_path"])
    assert issubclass(getattr(module, extra["spec_name"]), OffloadingSpec)
    assert extra[LATENCY_MS] == 3.0
