"""What happens to a job, in the order in which it happens, and what that means for its KV blocks.

The scheduler reports arrivals, admissions and ends of requests, the routes tool signals and
releases; each is announced on the stream of events. `admission` decides which request gets memory.
Knows blocks only as opaque values, and no reader of the events. Runs on the engine's main thread;
every call is O(log jobs).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from agentkv import events
from agentkv.durations.ttl import TTL
from agentkv.guard import Fault
from agentkv.listeners import FreeReason
from agentkv.policies.answers import GuardedPolicy
from agentkv.policies.base import EngineView, Policy
from agentkv.policies.forecast import SharedPrefix
from agentkv.policies.jobs import Context, Job, Prompt, Turn
from agentkv.policies.pins import Pin, PinEnd
from agentkv.policies.settings import MAX_PRIORITY
from agentkv.protocol import JobKey, Tags, ToolEvent
from agentkv.watchers import EventStream

from . import NO_BLOCKS, ArrivingRequest, Host, KeptBlocks
from .admission import AdmissionController
from .background import BackgroundWorker
from .conversations import Conversations
from .costs import RestoreCostModel
from .inference import JobInference, ParentInference, Silences
from .jobs import JobTable
from .pins import PinManager
from .predictor import DurationService, Reply
from .tool_signals import PinDecisions

MAX_DEPTH = 8
"""Ancestors of a sub-agent whose KV is pinned while it runs."""


class RetentionManager:
    """Follows the jobs of one engine, and decides what they leave in the cache."""

    def __init__(
        self,
        policy: Policy,
        host: Host,
        stream: EventStream,
        worker: BackgroundWorker,
    ) -> None:
        """`host` is the scheduler, `stream` takes the events. `worker` reads and predicts, in the
        background once it is started."""
        settings, clock, pool = policy.settings, host.clock, host.pool
        self.settings, self.worker = settings, worker
        self._emit = stream.emit
        self._host, self._clock = host, clock
        self.policy = policy = GuardedPolicy(policy, self._policy_failed)
        self.costs = RestoreCostModel(pool, settings.prefill_reload, host.monotonic)
        self.arrivals = itertools.count()
        """Arrival numbers, one sequence for all requests of the engine."""
        self.jobs = JobTable(
            max_jobs=settings.max_jobs,
            lease_s=settings.job_lease_s,
            is_pinned=lambda job_id: self.pins.get(job_id) is not None,
        )
        self._pin_manager = PinManager(host, self.jobs, stream, max_ttl_s=settings.max_ttl_s)
        self.pins = self._pin_manager.table
        self.conversations = Conversations(pool.block_tokens, self.jobs, self.pins, stream)
        predicts = policy.uses_predictions
        self.predictor = DurationService(settings, worker, clock, predicts=predicts)
        self.admission = AdmissionController(host, policy, self.jobs, self.pins, self.costs, stream)
        self.inference = JobInference(settings, worker, clock, pool.block_tokens, self.jobs, stream)
        self.silences = Silences()
        self.parents = ParentInference(self.jobs, clock)
        self.decisions = PinDecisions(
            policy, self.predictor, self._pin_manager, self.costs, stream, clock
        )
        view = EngineView(
            clock=clock,
            count_free_blocks=host.num_free_blocks,
            num_blocks=pool.num_blocks,
            block_tokens=pool.block_tokens,
            jobs=self.jobs,
            job=self.jobs.get,
            turns=self.jobs.turns.values(),
            pins=self.pins,
            service=self.admission.shares.service.view,
        )
        policy.bind(view)

    def start(self) -> None:
        """Read and predict in the background from now on, where anything is read."""
        if self.policy.uses_predictions or self.inference.is_on:
            self.worker.start()

    def _policy_failed(self, fault: Fault) -> None:
        self._emit(events.RulesFailed, fault)
        if fault.is_last:
            self._host.rank_changed(None)

    # A request arrives

    def request_arrived(self, request: ArrivingRequest) -> None:
        """Take a request in, as a turn of the job that it names or goes on from, as a side request
        of that job, or as one of no job."""
        self.apply_predictions()
        prompt, tags = request.prompt, request.tags
        job_id, is_side_request = tags.job_id, False
        if job_id is not None and prompt is not None:
            relation, job = self.conversations.relation(job_id, prompt), self.jobs.get(job_id)
            is_side_request = relation == "side request"
            if relation == "another":
                tags, job_id = Tags(), None
            elif request.max_tokens <= 1 and job is not None and job.is_repeated_by(prompt):
                # a ping keeps the cache warm while a tool runs or a person is awaited
                is_side_request = True
                self.decisions.renew(job)
        if job_id is None and prompt is not None:
            job_id = self.inference.job_id_of(request.request_id, prompt, request.client)
        if job_id is not None and prompt is not None:
            self._turn_arrived(request, job_id, tags, prompt, is_side_request=is_side_request)
            return
        order, num_tokens = next(self.arrivals), request.num_prompt_tokens
        self.admission.request_arrived(request.request_id, order, num_tokens, request.client)

    def _turn_arrived(
        self,
        request: ArrivingRequest,
        job_id: str,
        tags: Tags,
        prompt: Prompt,
        *,
        is_side_request: bool,
    ) -> None:
        """Register a turn of a job, which is inferred unless `tags` name it."""
        now_s, num_prompt_tokens = self._clock(), len(prompt.token_ids)
        request_id, order = request.request_id, next(self.arrivals)
        job = self.jobs.get(job_id)
        lender = None if tags.parent_job_id is None else self.jobs.lender(tags.parent_job_id, job)
        is_first = lender is None and (job is None or not job.has_run)
        if job is None:
            # A sub-agent takes the place of the job that waits for it.
            job = Job(JobKey.read(job_id), order if lender is None else lender.order)
            job.is_inferred = tags.job_id is None
            job.first_prompt_tokens, job.started_s = num_prompt_tokens, now_s
            job.kind = prompt.start(self._host.pool.block_tokens)
            self.jobs.put(job.job_id, job)
        elif job.is_inferred and tags.job_id is not None:
            self.inference.turns.remove(job.job_id)
            job.is_inferred = False
        if lender is not None:
            job.lender = lender
            lender.borrowers[job_id] = job
        # Among several clients a priority can only put a job behind others.
        best = 0 if self.admission.shares.are_many else -MAX_PRIORITY
        job.priority = max(best, min(request.priority, MAX_PRIORITY))
        is_known = job.decision is not None and job.decision.command is not None
        is_repeat = is_known and job.is_repeated_by(prompt)
        is_new = not is_side_request and job.take_tags(tags, prompt)
        turn = Turn(request_id, job, order, now_s, num_prompt_tokens, job.num_turns)
        turn.is_last_step, turn.is_first = bool(tags.is_last_step), is_first
        turn.common_tokens = job.common_tokens(prompt, self._host.pool.block_tokens)
        if not self._host.pool.has_one_group:
            turn.common_tokens = job.usable(turn.common_tokens)
        turn.is_side_request = is_side_request
        turn.is_later = turn.number > 1 and not is_side_request
        turn.is_repeat = is_repeat and not is_new
        self.conversations.arrived(job, prompt, is_side_request=is_side_request)
        # watchers see the job before what is known of its tool goes
        parent = None if tags.parent_job_id is None else JobKey.read(tags.parent_job_id).own_id
        self._emit(events.Arrived, job.job_id, turn, tags, prompt, not is_new, parent)
        if not turn.is_side_request:
            self.decisions.turn_arrived(job, tags, now_s, is_new=is_new)
        self.admission.turn_arrived(turn)
        if self.predictor.predicts and not turn.is_side_request:
            self._find_parent(turn, now_s)
        self.jobs.turns[request_id] = job.live[request_id] = turn
        self.jobs.touch(job, now_s)
        if job.parent_job_id is not None:
            self._hold_for_parents(job)
        if self.jobs.may_forget(now_s):  # not before: the job may be the one that is idle
            self.forget_idle_jobs()

    def _find_parent(self, turn: Turn, now_s: float) -> None:
        if not turn.is_first:
            self.silences.ended(turn.job, now_s)
        elif self.policy.has_admission_control:
            self.parents.turn_arrived(turn)

    # It has blocks, at first or again, or loses them

    def turn_admitted(self, request_id: str, *, hit_tokens: int) -> None:
        """End the pin of a job whose turn has its blocks, and notice evicted context."""
        turn = self.jobs.turns.get(request_id)
        self.admission.admitted(request_id, turn, hit_tokens)
        if turn is None:
            return
        job, pin = turn.job, self.pins.get(turn.job.job_id)
        if pin is not None and not turn.is_side_request:
            self._pin_manager.end(pin, "returned")
            if len(job.live) > 1:
                self._host.rank_changed(job.job_id)
        self.admission.kv_changed(job)
        if turn.admitted_s is None:
            self._first_admitted(job, turn, hit_tokens)
            return
        if not turn.was_reset:
            self.admission.recomputed(turn.num_prompt_tokens - hit_tokens)
        self._emit(events.Resumed, job.job_id, turn, hit_tokens)
        turn.was_reset = False

    def _first_admitted(self, job: Job, turn: Turn, hit_tokens: int) -> None:
        turn.admitted_s, turn.hit_tokens = self._clock(), hit_tokens
        waited_s = turn.admitted_s - turn.arrived_s
        lost_tokens = turn.common_tokens - self._host.pool.dropped_tokens - hit_tokens
        if lost_tokens > 0 and not job.was_reset:
            self.costs.offload.lost(lost_tokens)
            self.admission.recomputed(lost_tokens)
            job.num_evicted += 1
            self.policy.learned.queueing.observe(waited_s)
            self._emit(events.Evicted, job.job_id, lost_tokens)
        job.turn_admitted(turn)
        self._emit(events.Admitted, job.job_id, turn, round(waited_s, 6))

    def turn_preempted(self, request_id: str) -> None:
        """Note that a running request has lost its blocks and waits again."""
        self.admission.preempted(request_id)
        turn = self.jobs.turns.get(request_id)
        self._emit(events.Preempted, None if turn is None else turn.job.job_id)
        if turn is not None:
            self.admission.kv_changed(turn.job)

    # It ends

    def keeps_blocks(self, request_id: str, *, num_tokens: int) -> bool:
        """Return whether a turn that ends after its first tokens keeps what is in the cache of it.

        Asked before the blocks are popped. The TTL decided here is the one that `turn_ended` pins
        them with.
        """
        turn = self.jobs.turns.get(request_id)
        num_tokens = num_tokens if turn is None else turn.job.will_find(num_tokens)
        if turn is None or not (num_tokens and turn.may_be_held):
            return False
        ttl = self.policy.undecided_ttl(self.costs.cost(num_tokens))
        if turn.is_repeat and turn.job.decision is not None:
            ttl = turn.job.decision.ttl
        turn.ttl = TTL(min(ttl.seconds, turn.job.max_ttl_s), ttl.reason)
        return turn.ttl.seconds > 0

    def request_ended(
        self,
        request_id: str,
        *,
        is_finished_turn: bool,
        context: Context,
        reply: Callable[[], Reply],
        order: int = 0,
        kept: KeptBlocks = NO_BLOCKS,
    ) -> None:
        """Take a request out; `order` is the arrival number of one without a job.

        `kept` are the blocks that it keeps; without any, they were freed. `reply` is called at
        once if it matters what the reply runs.
        """
        turn = self.jobs.turns.pop(request_id, None)
        client = self.admission.ended(request_id, turn, len(context.token_ids))
        if turn is None:
            if is_finished_turn:
                self.inference.request_ended(request_id, order, context, client, reply)
            return
        job, now_s = turn.job, self._clock()
        if turn.loaded_tokens:
            self.costs.offload.forget(request_id)
        del job.live[request_id]
        self.jobs.touch(job, now_s)
        if is_finished_turn:
            self._finish(turn, context, kept, now_s)
        else:
            self._abort(turn, context, kept, now_s)
        if self.policy.follows_turns:
            served_s = 0.0 if turn.admitted_s is None else now_s - turn.admitted_s
            self.policy.turn_finished(turn, served_s)
        if kept.blocks:
            self._hold(turn, context, kept, now_s)
        elif (pin := self.pins.get(job.job_id)) is not None:
            self._ended_without_blocks(turn, pin)
        self.admission.kv_changed(job)
        if not job.live:
            self._only_turn_ended(turn, reply if is_finished_turn else None)
        if job.parent_job_id is not None:
            self._hold_for_parents(job)

    def _finish(self, turn: Turn, context: Context, kept: KeptBlocks, now_s: float) -> None:
        job = turn.job
        if not turn.is_side_request:
            self._has_context(turn, context, now_s)
            if job.is_inferred:
                self.inference.turn_finished(job, context)
            elif self.predictor.predicts and turn.may_be_held:
                job.next_turn = self.silences.began(job, now_s)
        num_output, turn.ended_s = len(context.token_ids) - context.num_prompt_tokens, now_s
        self._emit(events.Finished, job.job_id, turn, context, num_output, len(kept.blocks))

    def _abort(self, turn: Turn, context: Context, kept: KeptBlocks, now_s: float) -> None:
        """Take what a turn that the client left has computed and keeps as the job's context."""
        job = turn.job
        if kept.blocks:
            if job.is_inferred and job.finished_s is None:
                self.inference.turn_finished(job, context)
            self._has_context(turn, context, now_s)
            job.is_tool_observed = True  # the time until the next turn is a person's
        job.was_aborted = not turn.is_side_request
        is_held = bool(kept.blocks) or self.pins.get(job.job_id) is not None
        self._emit(events.Aborted, job.job_id, turn, is_held)

    def _has_context(self, turn: Turn, context: Context, now_s: float) -> None:
        job = turn.job
        added = job.finish_turn(now_s, context, keeps_tool=turn.is_repeat)
        if self.costs.blocks_per_token.varies:
            self.costs.blocks_per_token.observe(job.context_tokens)
        self.admission.growth.turn_ended(job, added)
        if self._host.pool.has_tier:
            job.tier_key = self._host.tier_key(context.block_hashes[: context.num_blocks])

    def _hold(self, turn: Turn, context: Context, kept: KeptBlocks, now_s: float) -> None:
        job, ttl = turn.job, turn.ttl
        assert ttl is not None
        pin = Pin(
            job_id=job.job_id,
            job_order=job.order,
            blocks=kept.blocks,
            fence=kept.fence,
            pinned_s=now_s,
            expires_s=now_s + ttl.seconds,
            num_exclusive_blocks=kept.num_exclusive_blocks,
            reason=ttl.reason,
            is_decided=turn.is_repeat or not (self.predictor.predicts or job.is_inferred),
        )
        is_held = self._pin_manager.pin(job, pin)
        if self._host.pool.has_one_group:
            num_shared = len(kept.blocks) - kept.num_exclusive_blocks
            job.prefix = SharedPrefix.of(context.block_hashes, num_shared)
            if is_held:
                self._free_what_is_not_held(job, pin)
        if job.live:
            self._host.rank_changed(job.job_id)

    def _free_what_is_not_held(self, job: Job, pin: Pin[Any]) -> None:
        block_tokens = self._host.pool.block_tokens
        held_tokens: float = job.will_find(len(pin.blocks) * block_tokens)
        if self.policy.holds_parts:
            held_tokens = self.policy.held_tokens(self.costs.cost(int(held_tokens)))
        num_freed = len(pin.blocks) - math.ceil(held_tokens / block_tokens)
        if num_freed > 0:
            self._pin_manager.take(pin, num_freed)

    def _ended_without_blocks(self, turn: Turn, pin: Pin[Any]) -> None:
        """End the job's pin if nothing will come back to it."""
        job = turn.job
        if turn.is_last_step and not job.live:
            self._pin_manager.end(pin, "last_step")
            self._host.rank_changed(job.job_id)
        elif not job.has_waiting_turn:
            # Its expiry may have passed while this turn waited, which `expire_due_pins` skips.
            self._pin_manager.reschedule(pin)

    def _only_turn_ended(self, turn: Turn, reply: Callable[[], Reply] | None) -> None:
        """Close a job whose last turn has left the engine, or have the turn's reply read, by which
        its pin is decided about."""
        job = turn.job
        if turn.is_last_step or job.is_released:
            self._close(job, "last_step" if turn.is_last_step else "released")
        elif reply is not None and not (turn.is_side_request or turn.is_repeat):
            if self.predictor.predicts or job.is_inferred:
                self._read(job, turn.request_id, reply)
        elif job.is_inferred and job.finished_s is None:
            self._close(job, "aborted")

    def _read(self, job: Job, request_id: str, reply: Callable[[], Reply]) -> None:
        self.decisions.read(job, request_id, reply())
        if not self.worker.is_started:
            self.do_what_is_due()

    def _hold_for_parents(self, job: Job) -> None:
        """Pin the jobs that wait for a sub-agent, which goes on, as if their turns ended now."""
        for _ in range(MAX_DEPTH):
            parent = self.jobs.get(job.parent_job_id or "")
            if parent is None or parent.live or not self.policy.has_admission_control:
                return
            self.decisions.sub_agent_goes_on(parent)
            job = parent

    # What runs between two turns, and when a pin ends

    def apply_predictions(self) -> None:
        """Decide about pins by what has been read and predicted. O(1) if that is nothing."""
        if not (self.predictor.answers or self.inference.found):
            return
        self.inference.take_found()
        for job in self.decisions.apply_predictions():
            self.inference.no_tool_called(job, self._clock())

    def tool_signal(self, job_id: str, event: ToolEvent) -> bool | None:
        """Take the client's report that a tool started or finished; False if it is about another
        turn than the last one, None for an unknown job."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        self.jobs.touch(job, self._clock())
        is_taken = self.decisions.tool_signal(job, event)
        self.do_what_is_due()
        return is_taken

    def do_what_is_due(self) -> None:
        """Apply predictions, end pins and jobs, save. O(1) if nothing is due."""
        self.apply_predictions()
        now_s = self._clock()
        if now_s >= self.parents.next_s:
            for turn, parent in self.parents.found():
                if self.jobs.lend(parent, turn.job):
                    self.admission.takes_place(turn)
                    self._hold_for_parents(turn.job)
        self.expire_due_pins(now_s)
        for job in self.inference.pop_ended(now_s):
            if self.jobs.get(job.job_id) is job:
                self._end(job, "no_tool_call")
        if now_s >= self.jobs.next_lease_s:
            self.forget_idle_jobs()
        self.predictor.save_if_due()

    @property
    def next_due_s(self) -> float:
        """Return when there will be something to do, as far as is known now; infinite: never."""
        times_s = (self.pins.next_expiry_s, self.inference.next_end_s, self.predictor.next_save_s)
        known_s = [time_s for time_s in times_s if time_s is not None]
        return min([self.jobs.next_lease_s, *known_s])

    def expire_due_pins(self, now_s: float) -> None:
        """End pins whose TTL is over, except of jobs whose next turn waits. O(1) if none is.

        A TTL of 0 is what a decision gives a tool that takes too long.
        """
        while (pin := self.pins.pop_due(now_s)) is not None:
            job = self.jobs.get(pin.job_id)
            if job is None or not job.has_waiting_turn:
                self.end_pin(pin, "expired" if pin.ttl_s > 0 else "slow")

    def take_blocks(self, pin: Pin[Any], num_blocks: int, request_id: str) -> int:
        """Free about `num_blocks` of a pin's blocks for a request, or all where the policy or the
        pool allows no part; returns how many were freed, 0 if the pin is over."""
        if self.pins.get(pin.job_id) is not pin:
            return 0
        if not (self.policy.allows_partial_eviction and self._host.pool.has_one_group):
            num_blocks = len(pin.blocks)
        taker = self.jobs.turns.get(request_id)
        taken_by = "" if taker is None else taker.job.job_id
        num_taken = self._pin_manager.take(pin, num_blocks, taken_by)
        self._pin_changed(pin.job_id)
        return num_taken

    def end_pin(self, pin: Pin[Any], reason: PinEnd) -> None:
        self._pin_manager.end(pin, reason)
        self._pin_changed(pin.job_id)

    def _pin_changed(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None:
            self.admission.kv_changed(job)
        self._host.rank_changed(job_id)

    # The job is over, or the cache is empty

    def release(self, job_id: str) -> int | None:
        """End a job at the client's word: free its pin now. Returns the number of its blocks; None
        for an unknown job."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        pin = self.pins.get(job_id)
        freed_blocks = 0 if pin is None else len(pin.blocks)
        if pin is not None:
            self.end_pin(pin, "released")
        job.is_released = True
        if not job.live:
            self._close(job, "released")
        return freed_blocks

    def forget_idle_jobs(self) -> None:
        """Forget jobs whose lease is over, and the longest idle ones beyond `max_jobs`."""
        now_s = self._clock()
        while (job := self.jobs.next_to_forget(now_s)) is not None:
            self._end(job, "lease")

    def _end(self, job: Job, reason: FreeReason) -> None:
        pin = self.pins.get(job.job_id)
        if pin is not None:
            self.end_pin(pin, reason)
        self._close(job, reason)

    def _close(self, job: Job, reason: FreeReason) -> None:
        self.decisions.job_closed(job)
        self.policy.learned.memoryfulness.observe(max(job.num_turns, 1))
        self.jobs.pop(job.job_id)
        self.conversations.forget(job.job_id)
        self.inference.turns.remove(job.job_id)
        self.policy.job_ended(job)
        self.admission.job_ended(job)
        self._emit(events.Closed, job.job_id, job, reason)

    def cache_reset(self) -> None:
        """End all pins, since vLLM's prefix cache is about to be reset."""
        for pin in list(self.pins):
            self.end_pin(pin, "reset")
        for job in self.jobs:
            job.was_reset = True
        for turn in self.jobs.turns.values():
            turn.was_reset = turn.admitted_s is not None
        self._emit(events.CacheReset)

    def pause_changed(self) -> None:
        """Note a pause or its end: the time between two turns around it says nothing of a tool."""
        for job in self.jobs:
            job.has_paused = True
        self.costs.offload.paused()
