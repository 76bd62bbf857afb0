"""Gives vLLM 0.23 to 0.30 the names of 0.31 that the seam is written for; changes none of theirs.

What trainers pin: verl 0.9.1 has 0.24, SkyRL 0.3.0 has 0.23, OpenRLHF 0.11.2 has 0.29. Each name
says in which versions it is missing, and where its rule stands there.
"""

from __future__ import annotations

from typing import Any

from vllm.config import SpeculativeConfig
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

READS_SESSION_HEADER = hasattr(EngineCoreRequest, "session_id")
"""Whether vLLM takes X-Session-ID into `request.session_id`: not up to 0.27."""
HAS_KNOWN_TIER = "failed_recving" in KVConnectorOutput.__dataclass_fields__
"""Whether vLLM's CPU tier is the one that was tested: not up to 0.29, where loads end otherwise."""


def add_missing_names() -> None:
    """Do nothing on vLLM 0.31 and newer, nor if it was called before."""
    if not hasattr(Scheduler, "_request_blocks_can_be_freed"):
        Scheduler._request_blocks_can_be_freed = _request_blocks_can_be_freed
    if not hasattr(SpeculativeConfig, "use_eagle_block_drop"):
        Scheduler.use_eagle_block_drop = property(_uses_eagle)
    if not hasattr(Request, "session_id") and not READS_SESSION_HEADER:
        Request.session_id = EngineCoreRequest.session_id = None
    if not hasattr(KVCacheManager, "pop_blocks_for_free"):
        _add_names_of_0_24()


def _add_names_of_0_24() -> None:
    """0.23 frees blocks at once and has no watermark: no step is a fence, none stay behind."""
    KVCacheManager.pop_blocks_for_free = _pop_blocks_for_free
    KVCacheManager.watermark_blocks = 0
    Scheduler.defer_block_free = False
    Scheduler.sched_step_seq = Scheduler.processed_step_seq = 0
    Scheduler.deferred_frees = ()


def _request_blocks_can_be_freed(scheduler: Scheduler, request: Request) -> bool:
    """Whether no step in flight may still write the blocks of a finished request.

    Source: Scheduler._free_request_blocks (vllm/v1/core/sched/scheduler.py:2082 of 0.24, :2522 of
    0.29), which 0.30 calls this in.
    """
    if not scheduler.defer_block_free:
        return True
    return bool(request.last_sched_seq <= scheduler.processed_step_seq)


def _uses_eagle(scheduler: Scheduler) -> bool:
    """Whether the last block of every prefix hit is recomputed: up to 0.29 always with EAGLE.

    Source: `use_eagle=self.use_eagle` for the KVCacheManager (scheduler.py:259 of 0.24).
    """
    return bool(scheduler.use_eagle)


def _pop_blocks_for_free(manager: KVCacheManager, request: Request) -> list[Any]:
    """Take a request's blocks, of all groups, out of the manager's books without freeing them.

    Source: `free` of 0.23, in vllm/v1/core/single_type_kv_cache_manager.py:363; what it does in
    addition to freeing, by kind of layer, is done with no blocks left.
    """
    blocks: list[Any] = []
    for group in manager.coordinator.single_type_managers:
        blocks.extend(group.req_to_blocks.pop(request.request_id, ()))
        group.free(request.request_id)
    return blocks
