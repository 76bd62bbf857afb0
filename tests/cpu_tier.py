"""A KV tier in DRAM for vLLM's CPU build, below vLLM's own OffloadingConnector.

vLLM's native offloading refuses the CPU build in its worker only; the connector, the manager that
evicts, the metrics and the events are vLLM's own here. vLLM loads `CPUTierSpec` by its dotted path
(`spec_module_path`); `tier_flags` writes that configuration. Names are of vLLM 0.32.0. Runs in the
worker process, except for the spec, which the scheduler builds, too.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

GB_PER_S, LATENCY_MS = "link_gb_per_s", "link_latency_ms"
"""Keys of `kv_connector_extra_config` that slow the link down; without them it is as fast as memory
is copied."""


def tier_flags(gib: float, **link: float) -> tuple[str, ...]:
    """Return flags of `agentkv serve` for a tier of `gib` GiB with this worker; `link` has the keys
    above."""
    extra = {
        "offload_prompt_only": False,
        "spec_name": "CPUTierSpec",
        "spec_module_path": "tests.cpu_tier",
        **link,
    }
    config = {"kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}
    return ("--kv-offloading-size", f"{gib:g}", "--kv-transfer-config", json.dumps(config))


class CPUTierSpec(CPUOffloadingSpec):
    """vLLM's offloading to DRAM, with a worker for KV caches that are in DRAM themselves."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self._copier: CPUTierWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._copier is None:
            bytes_per_s = 1e9 * float(self.extra_config.get(GB_PER_S, math.inf))
            latency_s = 1e-3 * float(self.extra_config.get(LATENCY_MS, 0.0))
            self._copier = CPUTierWorker(
                kv_caches,
                self.num_chunks,
                loads=Link(bytes_per_s, latency_s),
                stores=Link(bytes_per_s, latency_s),
            )
        return self._copier


class Link:
    """Times the transfers of one direction, one after the other.

    A transfer over it has been made already: what takes as long as the link is the report that it
    is done, before which vLLM reads no block that was loaded.
    """

    def __init__(
        self, bytes_per_s: float, latency_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._clock = clock
        self._free_s = 0.0
        self._under_way: deque[tuple[float, TransferResult]] = deque()

    def add(self, job_id: int, num_bytes: int) -> None:
        """Queue a transfer behind those under way."""
        took_s = self._latency_s + num_bytes / self._bytes_per_s
        self._free_s = max(self._free_s, self._clock()) + took_s
        self._under_way.append((self._free_s, TransferResult(job_id, True, num_bytes, took_s)))

    def take_done(self, wanted: set[int]) -> list[TransferResult]:
        """Results of the transfers that have ended, and of those `wanted` at once."""
        now_s = self._clock()
        done, left = [], deque[tuple[float, TransferResult]]()
        for end_s, result in self._under_way:
            if end_s <= now_s or result.job_id in wanted:
                done.append(result)
            else:
                left.append((end_s, result))
        self._under_way = left
        return done


class CPUTierWorker(OffloadingWorker):
    """Copies blocks between the KV cache and the tier, at once when vLLM submits them.

    Costs the engine the time of the copy: about 0.5 ms per MB on one core.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, num_chunks: int, *, loads: Link, stores: Link
    ) -> None:
        self._cache: list[torch.Tensor] = [layer.tensor for layer in kv_caches.tensors]
        # empty: the system gives memory to rows once they are written
        self._tier = [
            torch.empty((num_chunks, layer.shape[1]), dtype=layer.dtype) for layer in self._cache
        ]
        self._bytes_per_block = sum(layer.page_size_bytes for layer in kv_caches.tensors)
        self._loads, self._stores = loads, stores
        self._waited_for: set[int] = set()

    def submit_store(
        self, job_id: int, src_spec: BlockIDsLoadStoreSpec, dst_spec: BlockIDsLoadStoreSpec
    ) -> bool:
        self._copy(self._cache, src_spec, self._tier, dst_spec)
        self._stores.add(job_id, len(src_spec.block_ids) * self._bytes_per_block)
        return True

    def submit_load(
        self,
        job_id: int,
        src_spec: BlockIDsLoadStoreSpec,
        dst_spec: BlockIDsLoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        """vLLM 0.33 waits within the step for an `expedited` load, which `wait` ends."""
        self._copy(self._tier, src_spec, self._cache, dst_spec)
        self._loads.add(job_id, len(src_spec.block_ids) * self._bytes_per_block)
        return True

    @staticmethod
    def _copy(
        sources: list[torch.Tensor],
        source_spec: BlockIDsLoadStoreSpec,
        targets: list[torch.Tensor],
        target_spec: BlockIDsLoadStoreSpec,
    ) -> None:
        """Copy rows one by one: 5 to 10 times as fast as torch's `index_select` on bytes."""
        pairs = zip(source_spec.block_ids.tolist(), target_spec.block_ids.tolist(), strict=True)
        for source_row, target_row in pairs:
            for source, target in zip(sources, targets, strict=True):
                target[target_row].copy_(source[source_row])

    def get_finished(self) -> list[TransferResult]:
        waited_for, self._waited_for = self._waited_for, set()
        return [*self._stores.take_done(waited_for), *self._loads.take_done(waited_for)]

    def wait(self, job_ids: set[int]) -> None:
        """Report these next: their blocks are about to be used otherwise, and have been copied."""
        self._waited_for |= job_ids

    def shutdown(self) -> None:
        self._tier.clear()
