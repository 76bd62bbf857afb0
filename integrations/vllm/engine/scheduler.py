"""The tags of a request as the engine gets it."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from typing import Any

from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from agentkv.errors import TagError
from agentkv.protocol import Tags, parse_tags

from ..policy.base import Demand, Rank
from ..policy.jobs import Context
from ..policy.pins import Pin
from ..retention.manager import Retention
from ..retention.predictor import MAX_REPLY_TOKENS, Reply, SideWork, Task
from ..settings import CONFIG_KEY, read_settings
from ..telemetry.counters import StepStats
from . import seam
from .queue import RankedQueue
from .step_timer import StepWatch
from .wakeup import BusyLoop


def tags_of(request: Request) -> Tags:
    """The tags in a request's `vllm_xargs`; vLLM's own session id is the job if none is named.

    Raises TagError for a field that is wrong.
    """
    sampling = request.sampling_params
    fields = dict(sampling.extra_args or {}) if sampling is not None else {}
    if fields.get("job_id") is None and request.session_id:
        fields["job_id"] = request.session_id
    return parse_tags(fields, flags_as_numbers=True)


# MERGED: Text of a reply's tokens, by the tokenizer of the model that is served.

logger = init_logger(__name__)


class ReplyDecoder:
    """Decodes in the thread that calls it; the tokenizer is got on the first call.

    It is the instance that vLLM's engine has loaded for structured outputs. Without one
    (`--skip-tokenizer-init`), or if it cannot be loaded, every text is empty, after one warning.
    """

    def __init__(self, model_config: Any) -> None:
        self._model_config = model_config
        self._tokenizer: Any = None
        self._is_loaded = False

    def __call__(self, token_ids: list[int]) -> str:
        """The text of these tokens, special ones included."""
        if not self._is_loaded:
            self._is_loaded = True
            self._tokenizer = self._load()
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def _load(self) -> Any:
        reason: object = "--skip-tokenizer-init is given"
        tokenizer = None
        try:
            tokenizer = cached_tokenizer_from_config(self._model_config)
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
        if tokenizer is None:
            logger.warning(
                "agentkv: replies are not read for tool calls, there is no tokenizer (%s); "
                "commands are known only where the client reports them",
                reason,
            )
        return tokenizer


# MERGED: vLLM's scheduler with a retention policy: connects the seam's hooks to `Retention`.
# MERGED: Runs in the engine process. Scheduling changes timing and memory, never output.

MORE_BLOCKS = 8
"""Blocks taken from pins in one go where the first estimate was too low."""


class RetainingScheduler(seam.SchedulerSeam):
    """Keeps the KV of finished agent turns; requests without a `job_id` are scheduled as stock.

    For engines without async scheduling, as on the CPU.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = dict(self.vllm_config.additional_config.get(CONFIG_KEY) or {})
        policy = given.pop("policy", "continuum")
        settings = read_settings(given, policy=policy)
        self._loop = BusyLoop()
        self._side_work = SideWork(self._guard, wake=self._loop.wake)
        self.retention = Retention(
            settings.of_engine(seam.engine_number(self.vllm_config)),
            num_blocks=self.num_blocks(),
            block_tokens=self.hash_block_size,
            clock=self.clock,
            free=self.free_blocks,
            on_rank_change=self._rerank,
            on_deadline=self._loop.wake_at,
            side_work=self._side_work,
            drops_last_block=seam.drops_last_block(self),
        )
        self._has_one_group = seam.num_cache_groups(self) == 1
        self.steps = StepStats()
        self.queue = RankedQueue(self._rank, self.retention.arrivals)
        if seam.is_first_come_first_served(self):
            self.install_queue(self.queue)
        self.install_allocator()
        self._watch = StepWatch(
            self.retention.step_fit, self.clock, memory=self._memory, num_steps=self.num_steps
        )
        self._decoder = ReplyDecoder(self.vllm_config.model_config)
        self._is_running_sorted = False
        self._unplaced: set[str] = set()
        self._told_stats: tuple[int, int] | None = None

    def clock(self) -> float:
        """Seconds on a monotonic clock; the simulator and tests override it."""
        return time.monotonic()

    def num_steps(self, output: SchedulerOutput) -> int:
        """Steps of the model that an output stands for; the simulator overrides it."""
        return 1

    def decode(self, token_ids: list[int]) -> str:
        """Text of tokens, special ones included; the simulator and tests override it.

        Called in the side-work thread, where there is one.
        """
        return self._decoder(token_ids)

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._register(request)
        super().add_request(request)

    @seam.guarded(None)
    def _register(self, request: Request) -> None:
        if self.waiting is not self.queue:
            return  # vLLM's own `priority` order: all of stock, no jobs
        self.retention.decisions.apply_forecasts()
        try:
            tags = tags_of(request)
        except TagError:
            self.retention.counters.add("bad_tags_total")
            self.retention.request_arrived(request.request_id)
            return
        if tags.job_id is None or request.prompt_token_ids is None:
            self.retention.request_arrived(request.request_id)
        else:
            self.retention.turn_arrived(
                request.request_id,
                tags,
                num_prompt_tokens=request.num_prompt_tokens,
                block_hashes=request.block_hashes,
                priority=request.priority,
            )

    def _rank(self, request: Request) -> Rank | None:
        return self.retention.contention.rank(
            request.request_id, is_preempted=seam.is_preempted(request)
        )

    def _rerank(self, job_id: str | None) -> None:
        """The place in the queue has changed of this job's turns; None: of all."""
        if job_id is None:
            self._is_running_sorted = False
            self.queue.rerank_all()
            return
        job = self.retention.jobs.get(job_id)
        for request_id in job.live if job is not None else ():
            request = self.requests.get(request_id)
            if request is not None:
                self.queue.rerank(request)

    def _sort_running(self) -> None:
        """Put the next victim last: vLLM's FCFS preempts `running[-1]` (S:834), and appends whom it
        admits (S:1345). O(log n) for each of those, unless places have changed.
        """
        unplaced, self._unplaced = self._unplaced, set()
        if not self.retention.policy.sorts_running():
            return
        if not self.retention.contention.has_running_turns:
            self._is_running_sorted = False
        elif not self._is_running_sorted:
            self.running.sort(key=self._victim_rank)
            self._is_running_sorted = True
        else:
            appended = []
            while self.running and self.running[-1].request_id in unplaced:
                appended.append(self.running.pop())
            for request in reversed(appended):
                bisect.insort(self.running, request, key=self._victim_rank)

    def _victim_rank(self, request: Request) -> Rank:
        rank = self.retention.contention.victim_rank(request.request_id)
        return (1, self.queue.order_of(request), 0) if rank is None else rank

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        self._before_step()
        output = super().schedule(*args, **kwargs)
        self._after_step(output)
        return output

    @seam.guarded(None)
    def _before_step(self) -> None:
        self.retention.do_what_is_due()
        self.retention.contention.step_begins()
        self.queue.unlatch()
        self._sort_running()

    @seam.guarded(None)
    def _after_step(self, output: SchedulerOutput) -> None:
        scheduled = output.num_scheduled_tokens
        self.steps.add(len(scheduled), output.total_num_scheduled_tokens, self._usage())
        for request_id in seam.admitted_ids(output):
            self._unplaced.add(request_id)
            hit_tokens = self.requests[request_id].num_computed_tokens - scheduled[request_id]
            self.retention.turn_admitted(request_id, hit_tokens=hit_tokens)
        self._watch.step_scheduled(output, self.requests)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> Any:
        self._before_outputs(model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self._after_outputs(scheduler_output)
        return outputs

    @seam.guarded(None)
    def _before_outputs(self, output: ModelRunnerOutput) -> None:
        """Some connectors load before a request runs, others in the step that runs it."""
        if self.retention.tier.is_loading:
            self.retention.loads_done(output.req_ids)
            if output.kv_connector_output is not None:
                self.retention.loads_done(output.kv_connector_output.finished_recving or ())

    @seam.guarded(None)
    def _after_outputs(self, output: SchedulerOutput) -> None:
        self._watch.step_processed(output)
        # Also here, where with async scheduling the device is busy with the next step.
        self.retention.decisions.apply_forecasts()

    @seam.guarded(True)
    def may_start(self, request: Request) -> bool:
        if request.num_computed_tokens:
            return True  # it has its blocks: a connector has loaded some
        reason = self.retention.contention.why_hold_back(
            request.request_id,
            num_running=len(self.running),
            num_free_blocks=self.num_free_blocks(),
        )
        return reason is None

    @seam.guarded(None)
    def load_began(self, request: Request, num_tokens: int) -> None:
        self.retention.load_began(request.request_id, num_tokens)

    def memory_is_short(self, request: Request, missing_blocks: int) -> Iterator[None]:
        pins = self._pins_that_yield(request, missing_blocks)
        left, has_taken = missing_blocks, False
        if pins and seam.is_running(request):
            left += self.blocks_of_those_behind(request)
        for pin in pins:
            while self.is_freeable(pin.fence) and (taken := self._take(pin, left)):
                left, has_taken = left - taken, True
                if left <= 0:
                    yield
                    left, has_taken = MORE_BLOCKS, False
        if has_taken:
            yield

    @seam.guarded(0)
    def _take(self, pin: Pin[Any], num_blocks: int) -> int:
        """Blocks taken from a pin; 0 if it is over."""
        if self.retention.pins.get(pin.job_id) is not pin:
            return 0
        if not (self.retention.policy.takes_tails and self._has_one_group):
            num_blocks = len(pin.blocks)
        return self.retention.keeper.take(pin, num_blocks)

    @seam.guarded(())
    def _pins_that_yield(self, request: Request, missing_blocks: int) -> Sequence[Pin[Any]]:
        """In order; the turn's own one, whose blocks it may be about to use, last."""
        turn = self.retention.turns.get(request.request_id)
        is_running = seam.is_running(request)
        waits_with_blocks = not is_running and request.num_computed_tokens > 0
        common_tokens = 0 if turn is None else turn.common_tokens
        pins = self.retention.contention.memory_is_short(
            Demand(
                turn,
                is_running or waits_with_blocks,
                len(self.running) + waits_with_blocks,
                missing_blocks,
                is_due=self.retention.contention.newcomers.is_due(request.request_id),
                common_blocks=round(self.retention.footprint.blocks(common_tokens)),
            )
        )
        own = None if turn is None else self.retention.pins.get(turn.job.job_id)
        return pins if own is None else sorted(pins, key=lambda pin: pin is own)

    @seam.guarded(False)
    def wants_blocks_kept(self, request: Request) -> bool:
        if not self._has_one_group:
            num_tokens = seam.num_computed_tokens(request)
            self.retention.footprint.measured(num_tokens, self.num_blocks_of(request))
        return self.retention.should_pin(
            request.request_id, is_finished_turn=seam.is_finished_turn(request)
        )

    def request_ended(self, request: Request, blocks: Sequence[Any], fence: int) -> None:
        self.queue.forget_order(request)
        if not self._end_turn(request, blocks, fence) and not self._is_pinned(blocks):
            self.free_blocks(blocks, fence)
        self._read_reply(request)

    @seam.guarded(None)
    def _read_reply(self, request: Request) -> None:
        if self.retention.wants_reply(request.request_id):
            token_ids, stop_token_id = seam.end_of_reply(request, MAX_REPLY_TOKENS)
            reply = Reply(request.request_id, token_ids, stop_token_id)
            self.retention.read(reply, self.decode)

    @seam.guarded(None)
    def _guard(self, task: Task) -> None:
        task()

    def _is_pinned(self, blocks: Sequence[Any]) -> bool:
        return any(pin.blocks is blocks for pin in self.retention.pins)

    @seam.guarded(False)
    def _end_turn(self, request: Request, blocks: Sequence[Any], fence: int) -> bool:
        num_blocks = seam.num_computed_tokens(request) // self.hash_block_size
        self.retention.turn_ended(
            request.request_id,
            is_finished_turn=seam.is_finished_turn(request),
            context=Context(request.block_hashes, num_blocks, self.hash_block_size),
            blocks=blocks,
            num_own_blocks=seam.num_held_once(blocks),
            fence=fence,
        )
        return True

    @seam.guarded(None)
    def request_preempted(self, request: Request) -> None:
        self.retention.turn_preempted(request.request_id)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Pins would make the reset fail: end them first."""
        self._end_all_pins()
        return bool(super().reset_prefix_cache(*args, **kwargs))

    @seam.guarded(None)
    def _end_all_pins(self) -> None:
        self.retention.keeper.end_all("reset")

    def attach(self, engine: Any) -> None:
        """Called once by the engine that runs this scheduler in its busy loop."""
        self._loop.attach(engine)
        if self.retention.settings.predicts:
            self._side_work.start()

    def has_requests(self) -> bool:
        """Also asked by an idle engine when it wakes: pins expire and gauges move here."""
        self._work_when_idle()
        has_requests = bool(super().has_requests())
        if not has_requests and self._loop.is_attached and self._has_news():
            self._push_stats()
        return has_requests

    @seam.guarded(None)
    def _work_when_idle(self) -> None:
        self.retention.do_what_is_due()
        next_due_s = self.retention.next_due_s
        if next_due_s is not None:
            self._loop.wake_at(next_due_s)

    @seam.guarded(None)
    def _push_stats(self) -> None:
        stats = self.make_stats()
        self._told_stats = self._gauges()
        if stats is not None:
            self._loop.push_stats(stats)

    def _has_news(self) -> bool:
        return self._told_stats != self._gauges() or self.retention.counters.has_delta

    def _gauges(self) -> tuple[int, int]:
        return self.num_free_blocks(), len(self.retention.pins)

    def _usage(self) -> float:
        return 1 - self.num_free_blocks() / max(self.num_blocks(), 1)

    def _memory(self) -> tuple[float, float]:
        """Tokens of KV that running requests have, and the part of the pool that pins have."""
        idle_share = self.retention.pins.num_blocks / max(self.num_blocks(), 1)
        return (self._usage() - idle_share) * self.retention.policy.pool_tokens, idle_share

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        stats = super().make_stats(*args, **kwargs)
        if stats is not None:
            self._told_stats = self._gauges()
            setattr(stats, seam.STATS_FIELD, self._payload())
        return stats

    @seam.guarded(None)
    def _payload(self) -> dict[str, Any] | None:
        pins = self.retention.pins
        gauges = {"pinned_jobs": len(pins), "pinned_blocks": pins.num_blocks}
        return {"gauges": gauges, **self.retention.counters.take_delta()}

    def shutdown(self) -> None:
        self.retention.close()
        super().shutdown()


class AsyncRetainingScheduler(RetainingScheduler, AsyncScheduler):
    """For engines with async scheduling (the default on CUDA)."""


def make_scheduler(*, vllm_config: Any, **kwargs: Any) -> Scheduler:
    """The `scheduler_cls` the plugin gives to vLLM: builds the sync or the async class.

    Source: EngineCore.__init__ (vllm/v1/engine/core.py:161), which only calls it.
    """
    is_async = vllm_config.scheduler_config.async_scheduling
    scheduler = AsyncRetainingScheduler if is_async else RetainingScheduler
    return scheduler(vllm_config=vllm_config, **kwargs)
