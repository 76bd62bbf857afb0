"""vLLM's scheduler with a retention policy: connects the seam's hooks to RetentionManager.

Runs in the engine process. Each hook reports one event to `retention` or asks it one question; the
rules are in `agentkv.policies`. Scheduling changes timing and memory, never output.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentkv.named_classes import label_of
from agentkv.policies.base import Policy
from agentkv.policies.forecast import SharedPrefix
from agentkv.policies.jobs import Context
from agentkv.policies.names import CONFIG_KEY, DEFAULT_POLICY, make_policy, read_settings
from agentkv.policies.pins import Pin
from agentkv.policies.settings import Settings
from agentkv.watchers import EventStream

from ..retention import CacheGroup, KeptBlocks, KVPool, QueueRank
from ..retention.background import BackgroundWorker, Task
from ..retention.manager import RetentionManager
from ..retention.predictor import MAX_REPLY_TOKENS, Reply
from ..watch.counters import Counters
from ..watch.watchers import FaultLog, Gauges, Watchers
from . import seam
from .queue import RankedQueue, RunningOrder
from .requests import ReplyDecoder, ReplyParser, arriving, client_of, tags_of
from .wakeup import EngineClock, EngineWaker, StepTimer

MORE_BLOCKS = 8
"""Blocks taken from pins at once where the first estimate was too low."""

logger = init_logger(__name__)


class RetainingScheduler(seam.SchedulerSeam):
    """Keeps the KV of finished agent turns; schedules requests without a `job_id` as stock does.

    For engines without async scheduling, as on the CPU. It is the `Host` of its `retention`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = dict(self.vllm_config.additional_config.get(CONFIG_KEY) or {})
        name = given.pop("policy", DEFAULT_POLICY)
        settings = read_settings(given, policy=name).of_engine(seam.engine_number(self.vllm_config))
        tier = seam.OffloadingTier.of(self)
        self.pool = KVPool(
            self.num_blocks(),
            self.tokens_per_hash(),
            drops_last_block=seam.drops_last_block(self),
            groups=tuple(CacheGroup(*group) for group in seam.cache_groups(self)),
            hit_tokens=seam.hit_tokens(self),
            has_tier=tier is not None,
        )
        self._tier = tier
        self.clock = EngineClock(self.monotonic)
        self._waker = EngineWaker(self.clock)
        self.wake_at = self._waker.wake_at
        faults, counters = FaultLog(), Counters()
        self.stream = stream = EventStream(faults)
        for watcher in (counters, faults):
            stream.add(watcher)
        self.retention = RetentionManager(
            self.make_policy(settings, self.pool.num_tokens),
            self,
            stream,
            BackgroundWorker(self._guard, wake=self._waker.wake),
        )
        self.admission = self.retention.admission
        self.watchers = Watchers(
            settings,
            self,
            self.retention,
            counters,
            stream,
            about={"policy": label_of(settings.policy), **self.bounds()},
            has_tracing=self.vllm_config.observability_config.otlp_traces_endpoint is not None,
        )
        self.gauges = Gauges(self)
        self.queue = RankedQueue(
            self._rank, client_of, self.admission.shares.place, self.retention.arrivals
        )
        self.order = RunningOrder(self.retention.policy, self.admission, self.queue.order_of)
        if seam.is_first_come_first_served(self):
            self.install_queue(self.queue)
        self.install_allocator()
        self._timer = StepTimer(self.retention.costs.step_time, self)
        self._decoder = ReplyDecoder(self.vllm_config.model_config)
        self._parser = ReplyParser(self.vllm_config, self._decoder)
        self._num_left_waiting = 0
        self._sent_gauges: tuple[int, int, bool] | None = None

    # What the simulator, studies and tests override

    def monotonic(self) -> float:
        """Seconds on a clock that goes on in a pause, unlike `clock`."""
        return time.monotonic()

    def num_steps(self, output: SchedulerOutput) -> int:
        """Return for how many steps of the model an output stands."""
        return 1

    def decode(self, token_ids: list[int]) -> str:
        """Return the text of tokens, special ones included. Called in the background thread, if
        it runs, and for a few tokens of an arriving prompt in the engine's."""
        return self._decoder(token_ids)

    def make_policy(self, settings: Settings, pool_tokens: int) -> Policy:
        """Return the rules; a study overrides it to leave some of them out."""
        return make_policy(settings, pool_tokens)

    # What retention asks of its host, besides `pool`, `clock` and the seam's `free_blocks`

    def running_tokens(self) -> Iterator[tuple[str, int]]:
        """Yield the running requests, each with the tokens that it has in the cache."""
        for request in self.running:
            yield request.request_id, request.num_computed_tokens

    def tier_key(self, block_hashes: Sequence[Any]) -> Any:
        """Return the key of a context's end in vLLM's CPU offloading; None without it."""
        return None if self._tier is None else self._tier.key_of(block_hashes)

    def is_in_tier(self, tier_key: Any) -> bool:
        """Return whether that KV is in the tier, ready to be loaded."""
        return self._tier is not None and self._tier.has(tier_key)

    def rank_changed(self, job_id: str | None) -> None:
        """Move this job's waiting turns (None: of all jobs) to their present place in the queue."""
        if job_id is None:
            self.order.is_sorted = False
            self.queue.rerank_all()
            return
        job = self.retention.jobs.get(job_id)
        for request_id in job.live if job is not None else ():
            request = self.requests.get(request_id)
            if request is not None:
                self.queue.rerank(request)

    # A request arrives

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._register(request)
        super().add_request(request)

    @seam.guarded(None)
    def _register(self, request: Request) -> None:
        if self.waiting is not self.queue:
            return  # vLLM's own `priority` order: everything is stock, no jobs
        tags, passed_over = tags_of(request)
        if passed_over:
            self.watchers.counters.add("bad_tags_total")
        self.retention.request_arrived(arriving(request, tags))

    # A step: places, then vLLM's own schedule(), then what it did

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self._before_step()
        output = super().schedule(*args, **kwargs)
        self._after_step(output)
        return output

    @seam.guarded(None)
    def _before_step(self) -> None:
        self.retention.do_what_is_due()
        self.admission.step_begins(self._num_left_waiting)
        self.queue.unlatch()
        self.order.sort(self.running)

    def _rank(self, request: Request) -> QueueRank | None:
        return self.admission.rank(request.request_id, is_preempted=seam.is_preempted(request))

    @seam.guarded(None)
    def _after_step(self, output: SchedulerOutput) -> None:
        self._num_left_waiting = len(self.queue)
        scheduled = output.num_scheduled_tokens
        for request_id in seam.admitted_ids(output):
            self.order.unplaced.add(request_id)
            request = self.requests[request_id]
            hit_tokens = request.num_computed_tokens - scheduled[request_id]
            self.retention.turn_admitted(request_id, hit_tokens=hit_tokens)
        self._timer.step_scheduled(output, self.requests)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        self._before_outputs(model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._after_outputs(scheduler_output)
        return outputs

    @seam.guarded(None)
    def _before_outputs(self, output: ModelRunnerOutput) -> None:
        """Report finished KV loads: some connectors load before a request runs, others in the step
        that runs it."""
        self.admission.loads_finished(output.req_ids)
        if output.kv_connector_output is not None:
            self.admission.loads_finished(output.kv_connector_output.finished_recving or ())

    @seam.guarded(None)
    def _after_outputs(self, output: SchedulerOutput) -> None:
        self._timer.step_processed(output)
        # Also here, where with async scheduling the device is busy with the next step.
        self.retention.apply_predictions()

    # Memory: who may have blocks, and who gives some back

    @seam.guarded(True)
    def may_start(self, request: Request, num_shared: int) -> bool:
        if request.num_computed_tokens:
            return True  # it holds blocks: a connector has loaded some
        return self.admission.may_start(
            request.request_id,
            num_running=len(self.running),
            num_free_blocks=self.num_free_blocks(),
            prefix=SharedPrefix.of(request.block_hashes, num_shared),
        )

    @seam.guarded(None)
    def has_started(self, request: Request, num_loaded: int) -> None:
        self.admission.has_started(request.request_id, num_loaded)

    def free_memory_for(self, request: Request, missing_blocks: int) -> Iterator[None]:
        pins = self._pins_to_take(request, missing_blocks)
        left, has_taken = missing_blocks, False
        if pins and seam.is_running(request):
            left += self.blocks_of_those_behind(request)
        for pin in pins:
            while self.is_freeable(pin.fence) and (taken := self._take_blocks(pin, left, request)):
                left, has_taken = left - taken, True
                if left <= 0:
                    yield
                    left, has_taken = MORE_BLOCKS, False
        if has_taken:
            yield
        if seam.is_running(request):
            yield from self.give_up_prompt_ends(request)

    @seam.guarded(())
    def _pins_to_take(self, request: Request, missing_blocks: int) -> Sequence[Pin[Any]]:
        is_running = seam.is_running(request)
        waits_with_blocks = not is_running and request.num_computed_tokens > 0
        return self.admission.pins_to_take(
            request.request_id,
            has_blocks=is_running or waits_with_blocks,
            num_running=len(self.running) + waits_with_blocks,
            missing_blocks=missing_blocks,
        )

    @seam.guarded(0)
    def _take_blocks(self, pin: Pin[Any], num_blocks: int, request: Request) -> int:
        return self.retention.take_blocks(pin, num_blocks, request.request_id)

    @seam.guarded(None)
    def request_preempted(self, request: Request) -> None:
        self.retention.turn_preempted(request.request_id)

    # A request ends

    @seam.guarded(False)
    def will_hold(self, request: Request) -> bool:
        turn = self.retention.jobs.turns.get(request.request_id)
        return turn is not None and turn.may_be_held

    @seam.guarded(False)
    def wants_blocks_kept(self, request: Request, hit_tokens: int) -> bool:
        return (seam.is_finished_turn(request) or seam.was_left(request)) and (
            self.retention.keeps_blocks(request.request_id, num_tokens=hit_tokens)
        )

    def request_ended(
        self, request: Request, blocks: Sequence[Any], fence: int, hit_tokens: int
    ) -> None:
        is_taken = self._report_end(request, blocks, fence, hit_tokens)
        if not is_taken and all(pin.blocks is not blocks for pin in self.retention.pins):
            self.free_blocks(blocks, fence)
        self.queue.forget_order(request)

    @seam.guarded(False)
    def _report_end(
        self, request: Request, blocks: Sequence[Any], fence: int, hit_tokens: int
    ) -> bool:
        block_tokens, num_tokens = self.pool.block_tokens, seam.num_computed_tokens(request)
        self.retention.request_ended(
            request.request_id,
            is_finished_turn=seam.is_finished_turn(request),
            context=Context(
                block_hashes=request.block_hashes,
                num_blocks=num_tokens // block_tokens,
                block_tokens=block_tokens,
                token_ids=request.all_token_ids,
                num_prompt_tokens=request.num_prompt_tokens,
                hit_tokens=None if self.pool.has_one_group else hit_tokens,
            ),
            order=self.queue.order_of(request),
            kept=KeptBlocks(blocks, seam.num_held_once(blocks), fence),
            reply=partial(self._reply_of, request),
        )
        return True

    def _reply_of(self, request: Request) -> Reply:
        token_ids, stop_token_id = seam.end_of_reply(request, MAX_REPLY_TOKENS)
        parse = partial(self._parser.calls, token_ids, stop_token_id, request.sampling_params)
        return Reply(token_ids, self.decode, stop_token_id, parse)

    @seam.guarded(None)
    def _guard(self, task: Task) -> None:
        task()

    # A trainer's weight update

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """End all pins first, since they would make the reset fail."""
        self._before_reset()
        return bool(super().reset_prefix_cache(*args, **kwargs))

    @seam.guarded(None)
    def _before_reset(self) -> None:
        self.retention.cache_reset()

    def set_pause_state(self, pause_state: Any) -> None:
        """Let no time pass for pins and jobs while vLLM is paused, asleep included."""
        super().set_pause_state(pause_state)
        self._pause_changed()

    @seam.guarded(None)
    def _pause_changed(self) -> None:
        self.retention.pause_changed()
        if seam.is_paused(self):
            self.clock.stop()
        else:
            self.clock.go_on()

    # The idle engine, and its statistics

    def attach(self, engine: Any) -> None:
        """Take the engine that runs this scheduler in its busy loop; called once."""
        self._waker.attach(engine)
        self.retention.start()
        self.watchers.start()

    def has_requests(self) -> bool:
        """Return whether the engine has work; an idle one asks whenever it wakes.

        So pins that a wake-up was for expire here, and new gauges are sent.
        """
        self._expire_while_idle()
        has_requests = bool(super().has_requests())
        if not has_requests and self._waker.is_attached:
            has_news = self._sent_gauges != self.gauges.now()
            if has_news or self.watchers.counters.has_delta:
                self._push_stats()
        return has_requests

    @seam.guarded(None)
    def _expire_while_idle(self) -> None:
        self.retention.do_what_is_due()
        due_s = self.retention.next_due_s
        if due_s < math.inf:
            self.wake_at(due_s)

    @seam.guarded(None)
    def _push_stats(self) -> None:
        stats = self.make_stats()
        self._sent_gauges = self.gauges.now()
        if stats is not None:
            self._waker.push_stats(stats)

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            self._sent_gauges = self.gauges.now()
            setattr(stats, seam.STATS_FIELD, self._payload())
        return stats

    @seam.guarded(None)
    def _payload(self) -> dict[str, Any] | None:
        return self.gauges.payload()

    def usage(self) -> float:
        """Return the share of the pool that is not free, as vLLM itself counts it."""
        return 1 - self.num_free_blocks() / max(self.pool.num_blocks, 1)

    def memory_use(self) -> tuple[float, float]:
        """Return the tokens of KV of running requests, and the share of the pool that pins hold."""
        idle_share = self.retention.pins.num_blocks / max(self.pool.num_blocks, 1)
        return (self.usage() - idle_share) * self.pool.num_tokens, idle_share

    def shutdown(self) -> None:
        self.watchers.close()
        super().shutdown()


class AsyncRetainingScheduler(RetainingScheduler, AsyncScheduler):
    """Does the same for engines with asynchronous scheduling (the default on CUDA)."""


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """Build the scheduler, sync or async; the plugin names this function as vLLM's `scheduler_cls`.

    Source: EngineCore.__init__ (vllm/v1/engine/core.py:161), which only calls it.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    scheduler = AsyncRetainingScheduler if is_async else RetainingScheduler
    return scheduler(vllm_config=vllm_config, **kwargs)
