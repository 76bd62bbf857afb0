"""The only module that touches private names of vLLM's scheduler and engine.

RetainingScheduler overrides the hooks below; how the plugin gets in, by EngineArgs and AsyncLLM, is
in plugin.py and watch/prometheus.py. CONTRACT lists each private name, checked at start, so an
upgrade that moves one fails here by name. S: is vllm/v1/core/sched/scheduler.py; all sources are of
vLLM 0.32.0, and 0.31 to 0.33 have them all.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from vllm.logger import init_logger
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.request import Request, RequestStatus

logger = init_logger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

CONTRACT: tuple[tuple[str, str], ...] = (
    ("vllm.v1.core.sched.scheduler.Scheduler", "_free_blocks"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "_preempt_request"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "_request_blocks_can_be_freed"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "has_requests"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "make_stats"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "reset_prefix_cache"),
    ("vllm.v1.core.sched.scheduler.Scheduler", "set_pause_state"),
    ("vllm.v1.core.kv_cache_manager.KVCacheManager", "allocate_slots"),
    ("vllm.v1.core.kv_cache_manager.KVCacheManager", "get_blocks"),
    ("vllm.v1.core.kv_cache_manager.KVCacheManager", "pop_blocks_for_free"),
    ("vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator", "get_num_blocks_to_allocate"),
    ("vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator", "find_longest_cache_hit"),
    ("vllm.v1.core.block_pool.BlockPool", "free_blocks"),
    ("vllm.v1.core.block_pool.BlockPool", "get_new_blocks"),
    ("vllm.v1.core.block_pool.BlockPool", "get_num_free_blocks"),
    ("vllm.v1.core.block_pool.BlockPool", "touch"),
    ("vllm.v1.core.block_pool.BlockHashToBlockMap", "__len__"),
    ("vllm.v1.engine.core.EngineCoreProc", "_process_input_queue"),
    ("vllm.v1.engine.core_client.AsyncMPClient", "add_request_async"),
    ("vllm.v1.engine.core_client.DPLBAsyncMPClient", "get_core_engine_for_request"),
    ("vllm.v1.engine.EngineCoreRequestType", "WAKEUP"),
    ("vllm.v1.metrics.stats.SchedulerStats", "kv_cache_usage"),
    ("vllm.sampling_params.SamplingParams", "eos_token_id"),
    ("vllm.engine.arg_utils.EngineArgs", "add_cli_args"),
    ("vllm.engine.arg_utils.EngineArgs", "create_engine_config"),
    ("vllm.engine.arg_utils.EngineArgs", "from_cli_args"),
    ("vllm.config.scheduler.SchedulerConfig", "get_scheduler_cls"),
)
"""(owner, attribute) of every vLLM name the plugin relies on beyond its public interface."""

STATS_FIELD = "agentkv"


def guarded(otherwise: Any) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keep a hook's errors from vLLM: log the first of each hook and return `otherwise`.

    The only broad `except` of the scheduler: an error in a hook may cost a request its pin, but
    must not stop the engine.
    """

    def wrap(hook: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(hook)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return hook(*args, **kwargs)
            except Exception:
                if not reported:
                    reported.append(hook.__qualname__)
                    logger.exception(
                        "agentkv: %s failed; that request is scheduled as stock does "
                        "(further failures of this hook are not logged)",
                        hook.__qualname__,
                    )
                return cast(T, otherwise)

        reported: list[str] = []
        return call

    return wrap


class SchedulerSeam(Scheduler):
    """Turns vLLM's private scheduler methods into a few hooks with names of our own.

    Comes before AsyncScheduler among a class's bases. A subclass installs its queue and the
    allocator and overrides the hooks, which here leave everything as stock has it.
    """

    has_one_group = True
    """All layers share their blocks."""
    prompt_ends: dict[str, list[Any]]
    """By request, the blocks of its prompt's end that are held for it, some of which vLLM frees
    while the reply is written: states, and windows. Empty with one group."""

    def install_queue(self, queue: RequestQueue) -> None:
        """Replace the waiting queue (S:223 `create_request_queue`), before any request came."""
        self.waiting = queue

    def install_allocator(self) -> None:
        """Let `free_memory_for` free memory whenever an allocation fails, then retry.

        Wraps KVCacheManager.allocate_slots (kv_cache_manager.py:371), which then returns None.
        """
        allocate = self.kv_cache_manager.allocate_slots
        running = RequestStatus.RUNNING
        has_one_group = self.has_one_group = len(self.kv_cache_config.kv_cache_groups) == 1
        self.prompt_ends = {}

        def allocate_slots(
            request: Request,
            num_tokens: int,
            *args: Any,
            num_lookahead_tokens: int = 0,
            **kwargs: Any,
        ) -> Any:
            is_waiting = request.status is not running
            num_shared = num_held(kwargs.get("new_computed_blocks")) if is_waiting else 0
            if is_waiting and not self.may_start(request, num_shared):
                return None
            if args or kwargs:
                kwargs["num_lookahead_tokens"] = num_lookahead_tokens
                blocks = allocate(request, num_tokens, *args, **kwargs)
            else:
                # The hot path, once per running request and step (S:778): to pass packed arguments
                # on would take longer than all else that is done here.
                blocks = allocate(request, num_tokens, num_lookahead_tokens=num_lookahead_tokens)
            if blocks is None:
                kwargs["num_lookahead_tokens"] = num_lookahead_tokens
                blocks = self._allocate_again(allocate, request, num_tokens, *args, **kwargs)
            if blocks is None:
                return None
            if is_waiting:
                self.has_started(request, kwargs.get("num_external_computed_tokens", 0))
            if not has_one_group and request.num_computed_tokens < request.num_prompt_tokens:
                self._hold_prompt_end(request, num_tokens, kwargs)
            return blocks

        self.kv_cache_manager.allocate_slots = allocate_slots

    def _allocate_again(
        self, allocate: Callable[..., Any], request: Request, *args: Any, **kwargs: Any
    ) -> Any:
        """Repeat a failed allocation as long as there is memory to free; None if all fail.

        A state cannot be hit in the step that computes it, so vLLM then asks for more blocks than
        there are (single_type_kv_cache_manager.py:1664): nothing is freed for that.
        """
        missing_blocks = self._missing_blocks(allocate, request, *args, **kwargs)
        if missing_blocks + self.num_free_blocks() <= self.num_blocks():
            for _ in self.free_memory_for(request, missing_blocks):
                blocks = allocate(request, *args, **kwargs)
                if blocks is not None:
                    return blocks
        return None

    @guarded(1)
    def _missing_blocks(
        self,
        allocate: Callable[..., Any],
        request: Request,
        num_new_tokens: int,
        *args: Any,
        reserved_blocks: int = 0,
        **kwargs: Any,
    ) -> int:
        """Count the blocks that an allocation lacks which has just failed; at least 1.

        Lets it fail once more and records the arguments of
        KVCacheCoordinator.get_num_blocks_to_allocate (kv_cache_coordinator.py:190), which counts
        all groups, and the blocks of a prefix hit that are free themselves. Where the whole
        sequence has to fit it is called for that only (kv_cache_manager.py:526), and not for the
        step (:561).
        """
        coordinator = self.kv_cache_manager.coordinator
        count = coordinator.get_num_blocks_to_allocate
        asked: dict[str, Any] = {}

        def listen(**question: Any) -> int:
            asked.update(question)
            return int(count(**question))

        coordinator.get_num_blocks_to_allocate = listen
        try:
            allocate(request, num_new_tokens, *args, reserved_blocks=reserved_blocks, **kwargs)
        finally:
            del coordinator.get_num_blocks_to_allocate
        step_tokens = asked["total_computed_tokens"] + num_new_tokens
        of_step = {
            "num_tokens": step_tokens + kwargs.get("num_lookahead_tokens", 0),
            "num_tokens_main_model": step_tokens,
            "apply_admission_cap": False,
        }
        num_blocks = max(count(**asked), count(**{**asked, **of_step}) + reserved_blocks)
        if not is_running(request):
            num_blocks += self.kv_cache_manager.watermark_blocks
        return max(1, num_blocks - self.num_free_blocks())

    def blocks_of_those_behind(self, request: Request) -> int:
        """Count the blocks that the running requests behind a running one will need in this step.

        S:659 serves `running` in order; a decoding request needs a block once its last one is full.
        Ignores prefills and speculative tokens.
        """
        behind = itertools.islice(self.running, self.running.index(request) + 1, None)
        return sum(other.num_computed_tokens % self.block_size == 0 for other in behind)

    def may_start(self, request: Request, num_shared: int) -> bool:
        """Return whether a waiting request may have blocks; asked before it gets any. Others
        hold the first `num_shared` of its prompt."""
        return True

    def has_started(self, request: Request, num_loaded: int) -> None:
        """Note that a waiting request has its blocks, before others of the step are asked about;
        a KV connector loads `num_loaded` tokens."""

    def free_memory_for(self, request: Request, missing_blocks: int) -> Iterator[None]:
        """Free memory for an allocation that failed: yield after each part, for a retry."""
        return iter(())

    def will_hold(self, request: Request) -> bool:
        """Return whether a request's blocks may stay pinned when it has finished."""
        return False

    def wants_blocks_kept(self, request: Request, hit_tokens: int) -> bool:
        """Return whether blocks by which `hit_tokens` of a request can be hit stay pinned."""
        return False

    def request_ended(
        self, request: Request, blocks: Sequence[Any], fence: int, hit_tokens: int
    ) -> None:
        """Note that a request has left the engine. It keeps `blocks`, reusable after step
        `fence`; a prefix hit finds `hit_tokens` of it."""

    def request_preempted(self, request: Request) -> None:
        """Note that a running request has lost its blocks and waits again."""

    def _free_blocks(self, request: Request) -> None:
        """Scheduler._free_blocks (S:2746), except that a pinned turn keeps what can be hit: its
        hashed blocks, or with several groups what vLLM's own look-up finds of it."""
        num_tokens = num_computed_tokens(request)
        hit_tokens = num_tokens // self.tokens_per_hash() * self.tokens_per_hash()
        found: Sequence[Any] = ()
        if not self.has_one_group:
            found, hit_tokens = self._what_can_be_hit(request, num_tokens)
        keeps = self.wants_blocks_kept(request, hit_tokens)
        fence = 0 if self._request_blocks_can_be_freed(request) else self.sched_step_seq
        if not keeps or not self.has_one_group:
            kept = [*found] if keeps else []
            self.kv_cache_manager.block_pool.touch(kept)
            super()._free_blocks(request)
            self.let_go_of_prompt_end(request.request_id)
            self.request_ended(request, kept, fence, hit_tokens)
            return
        kept = []
        loose: list[Any] = []
        for block in self.kv_cache_manager.pop_blocks_for_free(request):
            is_hashed = block.block_hash is not None and not block.is_null
            (kept if is_hashed else loose).append(block)
        self.free_blocks(loose, fence)
        del self.requests[request.request_id]
        self.request_ended(request, kept, fence, hit_tokens)

    @guarded(((), 0))
    def _what_can_be_hit(self, request: Request, num_tokens: int) -> tuple[list[Any], int]:
        """Return the blocks of all groups by which a prefix hit finds a request's first
        `num_tokens`, and how many of them it finds (kv_cache_coordinator.py:796). O(blocks), once
        or twice a request.

        With EAGLE full attention has to find a block more than it returns.
        """
        coordinator = self.kv_cache_manager.coordinator
        groups, hit_tokens, *_ = coordinator.find_longest_cache_hit(
            request.block_hashes, num_tokens
        )
        found = [block for group in groups for block in group if not block.is_null]
        if hit_tokens and drops_last_block(self):
            for group, manager in zip(groups, coordinator.single_type_managers, strict=True):
                own = manager.req_to_blocks.get(request.request_id, ())
                if isinstance(manager.kv_cache_spec, FullAttentionSpec) and len(own) > len(group):
                    found += [block for block in own[len(group) :][:1] if block.block_hash]
        return found, hit_tokens

    @guarded(None)
    def _hold_prompt_end(self, request: Request, num_tokens: int, kwargs: dict[str, Any]) -> None:
        """Keep what is in the cache of a prompt's end once its last tokens are computed."""
        given = ("num_new_computed_tokens", "num_external_computed_tokens")
        end = request.num_computed_tokens + num_tokens + sum(kwargs.get(name, 0) for name in given)
        if end >= request.num_prompt_tokens and self.will_hold(request):
            found, _ = self._what_can_be_hit(request, request.num_prompt_tokens - 1)
            self.let_go_of_prompt_end(request.request_id)
            self.kv_cache_manager.block_pool.touch(found)
            self.prompt_ends[request.request_id] = found

    def let_go_of_prompt_end(self, request_id: str) -> None:
        """Give back the end of a request's prompt, if it is kept."""
        if self.prompt_ends and (blocks := self.prompt_ends.pop(request_id, None)) is not None:
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))

    def give_up_prompt_ends(self, request: Request) -> Iterator[None]:
        """Free what is kept of other requests' prompts alone, the newest first; yield after
        each, rather than preempt a running request."""
        for request_id, blocks in reversed(list(self.prompt_ends.items())):
            if request_id != request.request_id and num_held_once(blocks):
                self.let_go_of_prompt_end(request_id)
                yield

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super()._preempt_request(request, *args, **kwargs)
        self.let_go_of_prompt_end(request.request_id)
        self.request_preempted(request)

    def free_blocks(self, blocks: Sequence[Any], fence: int) -> None:
        """Give blocks back, tail first; deferred while a step up to `fence` may write them."""
        if not blocks:
            return
        if fence > self.processed_step_seq:
            self.deferred_frees.append((fence, list(blocks)))
        else:
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))

    def is_freeable(self, fence: int) -> bool:
        """Return whether blocks with this fence become free memory at once."""
        return fence <= self.processed_step_seq

    def tokens_per_hash(self) -> int:
        """Tokens of a block hash: those of a block of the smallest KV cache group."""
        return int(self.kv_cache_manager.block_pool.hash_block_size)

    def num_free_blocks(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks())

    def num_cached_blocks(self) -> int:
        """Count the blocks that a prefix hit can find, in use or free; equal ones count once."""
        return len(self.kv_cache_manager.block_pool.cached_block_hash_to_block)

    def num_blocks(self) -> int:
        """Count all blocks but the null block, as in usage = 1 - free / (blocks - 1)."""
        return int(self.kv_cache_manager.block_pool.num_gpu_blocks) - 1

    def bounds(self) -> dict[str, int]:
        """Return the memory, and vLLM's flags that bound batches and contexts."""
        config = self.vllm_config.scheduler_config
        specs = (group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups)
        return {
            "block_size": self.block_size,
            "hit_tokens": hit_tokens(self),
            "num_blocks": self.num_blocks(),
            "num_state_groups": sum(isinstance(spec, MambaSpec) for spec in specs),
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": self.vllm_config.model_config.max_model_len,
        }


def num_held_once(blocks: Sequence[Any]) -> int:
    """Count the blocks that no other request holds: freeing them frees memory."""
    return len([block for block in blocks if block.ref_cnt == 1])


@guarded(0)
def num_held(hit: KVCacheBlocks | None) -> int:
    """Count the blocks of a prefix hit that others hold, not free memory; 0 with several groups.

    O(log blocks): who holds a block of a prefix holds those before it.
    """
    blocks = hit.blocks[0] if hit is not None and len(hit.blocks) == 1 else ()
    return bisect.bisect_left(blocks, True, key=lambda block: block.ref_cnt == 0)


def cache_groups(scheduler: Scheduler) -> tuple[tuple[int, int | None], ...]:
    """Return the tokens of a block of each KV cache group, and the most blocks that a prefix hit
    takes of it; None where that grows with the prefix. More than one group where layers differ."""
    return tuple(
        (int(manager.block_size), _most_blocks(manager.kv_cache_spec))
        for manager in scheduler.kv_cache_manager.coordinator.single_type_managers
    )


def _most_blocks(spec: Any) -> int | None:
    if isinstance(spec, MambaSpec):
        return 1
    window = None
    if isinstance(spec, SlidingWindowSpec):
        window = spec.sliding_window
    elif isinstance(spec, ChunkedLocalAttentionSpec):
        window = spec.attention_chunk_size
    return None if window is None else max(1, -(-(window - 1) // spec.block_size))


def hit_tokens(scheduler: Scheduler) -> int:
    """Return the tokens of which every prefix hit has a multiple (kv_cache_coordinator.py:699)."""
    coordinator = scheduler.kv_cache_manager.coordinator
    if getattr(coordinator, "enable_partial_hash_hits", False):
        return int(scheduler.kv_cache_manager.block_pool.hash_block_size)
    return int(scheduler.block_size)


def drops_last_block(scheduler: Scheduler) -> bool:
    """Return whether the last block of every prefix hit is recomputed, for EAGLE (S:287)."""
    return bool(scheduler.use_eagle_block_drop)


class OffloadingTier:
    """vLLM's CPU offloading (v1/kv_offload), looked at without changing it."""

    def __init__(self, connector_scheduler: Any) -> None:
        self._base = importlib.import_module("vllm.v1.kv_offload.base")
        self._manager = connector_scheduler.manager
        self._group = connector_scheduler.config.kv_group_configs[0]

    @classmethod
    def of(cls, scheduler: Scheduler) -> OffloadingTier | None:
        """Return the scheduler's tier; None without one, and for several, which are not asked: a
        look-up there may start a transfer (tiering/manager.py)."""
        side = getattr(scheduler.connector, "connector_scheduler", None)
        if not any(kind.__name__ == "CPUOffloadingManager" for kind in _kinds(side, "manager")):
            return None
        try:
            return cls(side)
        except (ImportError, AttributeError):
            return None

    def key_of(self, block_hashes: Sequence[Any]) -> Any:
        """Return the key of the last full chunk of these blocks (offloading/scheduler.py:420)."""
        per_chunk = self._group.hashes_per_chunk
        num_hashes = len(block_hashes) // per_chunk * per_chunk
        if not num_hashes:
            return None
        return self._base.make_offload_key(block_hashes[num_hashes - 1], self._group.group_idx)

    def has(self, key: Any) -> bool:
        """Return whether that chunk can be loaded."""
        found = self._manager.lookup(key, self._base.ReqContext(req_id=""))
        return bool(found is self._base.LookupResult.HIT)


def _kinds(owner: Any, attribute: str) -> Sequence[type]:
    return type(getattr(owner, attribute, None)).__mro__


def num_computed_tokens(request: Request) -> int:
    """Count a finished request's tokens whose KV is in the cache; the last sampled never is."""
    computed = request.num_computed_tokens - request.num_output_placeholders
    return max(0, min(computed, request.num_tokens - 1))


def is_finished_turn(request: Request) -> bool:
    """Return whether a request ended as a turn of its job, not by an abort or an error.

    Stop strings are found in the API server and reach the scheduler as an abort, like a client's
    disconnect: an aborted request that has `stop` strings and some output counts as finished.
    """
    if request.status == RequestStatus.FINISHED_ABORTED:
        sampling = request.sampling_params
        return bool(sampling is not None and sampling.stop and request.num_output_tokens)
    return request.status in (
        RequestStatus.FINISHED_STOPPED,
        RequestStatus.FINISHED_LENGTH_CAPPED,
        RequestStatus.FINISHED_REPETITION,
    )


def was_left(request: Request) -> bool:
    """Return whether a client left a request after its first tokens: they may be used yet."""
    return request.status == RequestStatus.FINISHED_ABORTED and request.num_output_tokens > 0


def end_of_reply(request: Request, max_tokens: int) -> tuple[list[int], int | None]:
    """Return the last tokens of a request's reply, and apart from them the token that stopped it.

    The same two fields stop it in check_stop (vllm/v1/core/sched/utils.py:104).
    """
    token_ids = list(request.output_token_ids[-max_tokens:])
    sampling = request.sampling_params
    if token_ids and sampling is not None:
        last = token_ids[-1]
        if last == sampling.eos_token_id or last in (sampling.stop_token_ids or ()):
            return token_ids[:-1], last
    return token_ids, None


def engine_number(vllm_config: Any) -> int:
    """Return the number of a data-parallel engine, from 0 (vllm/config/parallel.py:439)."""
    return int(vllm_config.parallel_config.data_parallel_index)


def is_first_come_first_served(scheduler: Scheduler) -> bool:
    """Return whether vLLM orders by arrival (S:217); `priority` sorts by a field of its own."""
    return bool(scheduler.policy == SchedulingPolicy.FCFS)


def cache_keys(request: Request) -> tuple[object, object]:
    """Return what the request's block hashes contain apart from tokens, as far as a client
    chooses it: its LoRA and its salt (kv_cache_utils.py:578)."""
    return request.lora_request and request.lora_request.lora_name, request.cache_salt


def is_paused(scheduler: Scheduler) -> bool:
    """Return whether it starts no request: paused in any mode, or asleep (core.py:921, :959)."""
    return bool(scheduler.pause_state != PauseState.UNPAUSED)


def is_preempted(request: Request) -> bool:
    return bool(request.status == RequestStatus.PREEMPTED)


def admitted_ids(output: SchedulerOutput) -> list[str]:
    """Return the requests that run from this step on: new ones, and those preempted before.

    Read from the model runner's input, not from the waiting queue: a request whose KV a connector
    has loaded comes from another queue (S:915 `kv_holding_waiting`).
    """
    new = [request.req_id for request in output.scheduled_new_reqs]
    return [*new, *output.scheduled_cached_reqs.resumed_req_ids]


def is_running(request: Request) -> bool:
    return bool(request.status == RequestStatus.RUNNING)


def add_stats_field() -> None:
    """Give SchedulerStats a real field for our payload, in every process, before decoders exist.

    msgspec reads the fields of a dataclass from `__dataclass_fields__`; the class attribute is
    the default of instances made without the field. Idempotent.
    """
    if STATS_FIELD in SchedulerStats.__dataclass_fields__:
        return
    holder = dataclasses.make_dataclass(
        "holder", [(STATS_FIELD, dict[str, Any] | None, dataclasses.field(default=None))]
    )
    (field,) = dataclasses.fields(holder)
    SchedulerStats.__dataclass_fields__[STATS_FIELD] = field
    SchedulerStats.__annotations__[STATS_FIELD] = dict[str, Any] | None
    setattr(SchedulerStats, STATS_FIELD, None)


def install_engine_hooks(
    call: Callable[[Any, str, list[Any]], Any], attach: Callable[[Any], None]
) -> None:
    """Give EngineCore the utility method `agentkv_call`, and `attach` each engine once it runs.

    EngineCoreProc._process_input_queue (core.py:1573) is the first thing the busy loop calls, in
    the engine's own process with its queues in place; the wrapper takes itself off the instance.
    """
    if hasattr(EngineCore, "agentkv_call"):
        return

    def agentkv_call(self: Any, op: str, args: list) -> Any:  # type: ignore[type-arg]
        return call(self.scheduler, op, args)

    EngineCore.agentkv_call = agentkv_call
    process = EngineCoreProc._process_input_queue

    def process_input_queue(self: Any) -> None:
        self._process_input_queue = functools.partial(process, self)
        attach(self)
        process(self)

    EngineCoreProc._process_input_queue = process_input_queue


def wake(engine: Any) -> None:
    """Make an idle engine look at its scheduler again; callable from any thread."""
    engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def push_stats(engine: Any, stats: SchedulerStats) -> None:
    """Send stats to the first API server without waiting for a step's outputs."""
    engine.output_queue.put_nowait((0, EngineCoreOutputs(scheduler_stats=stats)))
