"""An engine stepped by hand: vLLM's real scheduler and block pool, a made-up runner, a set clock.

Importing it imports vLLM. A job is known by the fields of its requests alone.
"""

import threading
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingWorkerMetadata,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from agentkv.evals.simulator.vllm_scheduler import (
    SchedulerShape,
    build_scheduler,
    make_request,
    runner_output,
    sha256_hasher,
)

BLOCK_TOKENS = 16
_SHAPE = {field.name for field in fields(SchedulerShape)} - {"settings", "connector"}


class Vocabulary:
    """Tokens for replies given as text: each reply is cut into as many pieces as it has tokens.

    `decode` waits while `is_open` is cleared.
    """

    FIRST = 10_000

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.is_open = threading.Event()
        self.is_open.set()

    def encode(self, text: str, num_tokens: int) -> list[int]:
        """The text as exactly `num_tokens` tokens, the last ones empty where it is short."""
        size = -(-len(text) // num_tokens)
        pieces = [text[index * size : (index + 1) * size] for index in range(num_tokens)]
        self._pieces += pieces
        last = self.FIRST + len(self._pieces)
        return list(range(last - num_tokens, last))

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens; those that no reply was cut into have none."""
        assert self.is_open.wait(timeout=60)
        known = [token - self.FIRST for token in token_ids if token >= self.FIRST]
        return "".join(self._pieces[index] for index in known)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _offloading(num_bytes: int) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": num_bytes, "offload_prompt_only": False},
    }


class SteppedEngine:
    """One scheduler, stepped by hand: `step()` schedules and feeds back one token per request.

    With `offload_bytes` it has vLLM's own KV offloading to that much DRAM, whose worker here does
    every transfer within the step, but loads only while `is_link_open`; those for the requests in
    `failing` fail. `policy_class` makes its policy. `options` are fields of SchedulerShape, and
    agentkv's settings; the policy is `continuum`, whose pins are the plainest, unless one is named.
    """

    def __init__(
        self,
        *,
        scheduler_class: type[Scheduler] | None = None,
        offload_bytes: int = 0,
        policy_class: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        shape = {name: options.pop(name) for name in _SHAPE & options.keys()}
        self.clock = Clock()
        self.vocabulary = Vocabulary()
        self._replies: dict[str, list[int]] = {}
        self._hasher = sha256_hasher(
            shape.get("match_tokens") or shape.get("block_tokens", BLOCK_TOKENS)
        )
        self.scheduler = build_scheduler(
            SchedulerShape(
                **{"num_blocks": 64, "block_tokens": BLOCK_TOKENS, **shape},
                settings={"policy": "continuum", **options},
                connector=_offloading(offload_bytes) if offload_bytes else None,
                log_stats=True,
            ),
            clock=self.clock,
            decode=self.vocabulary.decode,
            policy_class=policy_class,
            scheduler_class=scheduler_class,
        )
        self.in_flight: list[tuple[Any, ModelRunnerOutput]] = []
        self._has_tier = offload_bytes > 0
        self.num_blocks_loaded = 0
        self.is_link_open = True
        self.failing: set[str] = set()
        self._loads: dict[int, Any] = {}
        self.is_async = bool(shape.get("is_async"))
        self._num_requests = 0

    # What to look at

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def num_free(self) -> int:
        return int(self.pool.get_num_free_blocks())

    def lost_blocks(self) -> list[int]:
        """Blocks whose count of holders is wrong: neither free nor held by a request or a pin."""
        held = dict.fromkeys(range(self.pool.num_gpu_blocks), 0)
        for manager in self.scheduler.kv_cache_manager.coordinator.single_type_managers:
            for blocks in manager.req_to_blocks.values():
                for block in blocks:
                    held[block.block_id] += 1
        retention = getattr(self.scheduler, "retention", None)
        for pin in retention.pins if retention is not None else ():
            for block in pin.blocks:
                held[block.block_id] += 1
        for blocks in getattr(self.scheduler, "prompt_ends", {}).values():
            for block in blocks:
                held[block.block_id] += 1
        free = {block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()}
        return [
            block.block_id
            for block in self.pool.blocks[1:]
            if block.ref_cnt != held[block.block_id]
            or (block.block_id in free) != (held[block.block_id] == 0)
        ]

    # What to do

    def add(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 4,
        request_id: str | None = None,
        stop: list[str] | None = None,
        reply: str | None = None,
        ending: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        **tags: Any,
    ) -> str:
        """Add a request; `tags` are the wire fields, as they stand in `vllm_xargs`.

        `reply` is what the model will say, in `max_tokens` tokens; with an `ending`, one more token
        that stops it.
        """
        self._num_requests += 1
        request_id = request_id or f"r{self._num_requests}"
        if reply is not None:
            self.set_reply(request_id, reply, max_tokens)
        stop_token_ids = None if ending is None else self.vocabulary.encode(ending, 1)
        if stop_token_ids is not None:
            self._replies[request_id] += stop_token_ids
            max_tokens += 10
        request = make_request(
            request_id,
            list(prompt),
            block_hasher=self._hasher,
            tags=tags or None,
            priority=priority,
            cache_salt=cache_salt,
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=stop_token_ids,
            detokenize=stop is not None,
        )
        self.scheduler.add_request(request)
        return str(request.request_id)

    def set_reply(self, request_id: str, reply: str, num_tokens: int) -> None:
        """Set what the model will say to a request."""
        self._replies[request_id] = self.vocabulary.encode(reply, num_tokens)

    def step(self, *, step_s: float | Callable[[Any], float] = 0.01) -> Any:
        """One engine step; async classes run one step ahead of their outputs. `step_s` is how long
        it takes, or says so of the output that is processed next."""
        if not self.scheduler.has_requests() and not self.in_flight:
            return None
        output = self.scheduler.schedule()
        if output.total_num_scheduled_tokens or self._has_tier:
            self.in_flight.append((output, self._run(output)))
        if callable(step_s):
            step_s = step_s(self.in_flight[0][0] if self.in_flight else output)
        self.clock.now_s += step_s
        while self.in_flight and (
            not self.is_async or len(self.in_flight) > 1 or not output.total_num_scheduled_tokens
        ):
            self.scheduler.update_from_output(*self.in_flight.pop(0))
        return output

    def _run(self, output: Any) -> ModelRunnerOutput:
        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            request = self.scheduler.requests[request_id]
            # Without a reply of its own the token depends on its position alone, as greedy
            # decoding does on the prefix.
            is_prefill = request.is_prefill_chunk
            position = request.num_computed_tokens
            said = self._replies.get(request_id, [])[position - request.num_prompt_tokens :]
            token = said[0] if said else 10 + position % 900
            sampled.append([] if is_prefill else [token])
        transfers = self._transfer(output) if self._has_tier else None
        return runner_output(ids, sampled, transfers=transfers)

    def _transfer(self, output: Any) -> KVConnectorOutput:
        meta, done = output.kv_connector_metadata, OffloadingWorkerMetadata()
        self._loads |= meta.load_jobs
        loads, self._loads = (self._loads, {}) if self.is_link_open else ({}, self._loads)
        for number in (*loads, *meta.store_jobs):
            done.mark_completed(number)
        self.num_blocks_loaded += sum(len(load.dst_spec.block_ids) for load in loads.values())
        loaded = {load.req_id for load in loads.values()}
        return KVConnectorOutput(
            finished_recving=loaded,
            failed_recving=loaded & self.failing,
            kv_connector_worker_meta=done,
        )

    def run(self, *, max_steps: int = 500) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished_requests() and not self.in_flight:
                return
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def turn(self, prompt: list[int], *, max_tokens: int = 4, **tags: Any) -> list[int]:
        """Run one request to its end; returns prompt and output tokens."""
        request_id = self.add(prompt, max_tokens=max_tokens, **tags)
        request = self.scheduler.requests[request_id]
        self.run()
        return list(request.all_token_ids)

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def wait(self, seconds: float) -> None:
        """Let time pass in an idle engine, then let it look at its scheduler, as its timer does."""
        self.clock.now_s += seconds
        self.scheduler.has_requests()


def prompt_of(num_tokens: int, *, salt: int = 0) -> list[int]:
    """A prompt that no other salt has."""
    return [10 + (salt * 7919 + index * 31) % 900 for index in range(num_tokens)]
