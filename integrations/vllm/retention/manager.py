"""Decides what each event of a job means for its KV blocks; the scheduler talks to nothing else.

The scheduler reports arrivals, admissions and ends of requests and asks what may stay, who goes
first and who gives memory back; the routes report tool signals and releases. Knows blocks only as
opaque values. Runs on the engine's main thread; every call is O(log jobs), except under memory
pressure, where pins are sorted once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from agentkv.durations.windows import DurationWindow
from agentkv.guard import Fault
from agentkv.listeners import FreeReason
from agentkv.policies.answers import GuardedPolicy
from agentkv.policies.base import AllocationRequest, Policy
from agentkv.policies.forecast import SharedPrefix
from agentkv.policies.jobs import Job, Turn
from agentkv.policies.pins import Pin, PinEnd
from agentkv.policies.settings import MAX_PRIORITY
from agentkv.protocol import Tags, ToolEvent, client_and_id

from ..telemetry import Telemetry
from ..telemetry.counters import Counters, turn_range
from ..telemetry.event_log import EventLog, open_writer
from ..telemetry.listeners import Listeners
from ..telemetry.turn_records import Prompt
from . import ClientPlace, Host, QueueRank
from .admission import AdmissionController
from .costs import RestoreCostModel
from .inference import JobInference, Opening, inferred_id
from .jobs import Context, JobTable, RetainedEngine
from .lifecycle import KVLifecycle
from .misses import TurnHistory
from .pin_lifecycle import PinManager
from .predictor import BackgroundWorker, Decode, DurationService, Reply
from .tool_signals import PinDecisions

RETURNING_WINDOW = 20
"""The last waits of returning turns, whose mean is reported to the balancer."""
MAX_SUB_AGENTS = 4
"""Sub-agents that share their parent's place in the queue at a time; a further one is a new job."""


class RetentionManager:
    """The jobs of one engine and what they leave in the cache."""

    def __init__(self, policy: Policy, host: Host, worker: BackgroundWorker | None = None) -> None:
        """`host` is the scheduler. `worker` reads and predicts in the background once started;
        without one that happens at once."""
        settings, clock = policy.settings, host.clock
        self.settings = settings
        self.policy = policy = GuardedPolicy(policy, self._policy_failed)
        self.counters = Counters()
        self.events = EventLog(
            max_events=settings.record_events, clock=host.monotonic, writer=open_writer(settings)
        )
        self.costs = RestoreCostModel(
            host.pool.block_tokens, settings.prefill_reload, host.monotonic
        )
        self.arrivals = itertools.count()
        """Arrival numbers, one sequence for all requests of the engine."""
        self._returning_waits = DurationWindow(RETURNING_WINDOW)
        self._host = host
        self._clock = clock
        self._worker = worker or BackgroundWorker()
        self.predictor = DurationService(
            settings, self._worker, clock, predicts=policy.uses_predictions
        )
        self.inference = JobInference(settings, self._worker, host.pool.block_tokens)
        telemetry = Telemetry(self.counters, self.events)
        self.history = TurnHistory(
            host,
            self.costs,
            self.counters,
            self._worker,
            shows_prompts=settings.show_prompts,
        )
        self._pin_manager = PinManager(host, telemetry, self.history, max_ttl_s=settings.max_ttl_s)
        self.pins = self._pin_manager.table
        self.jobs = JobTable(
            max_jobs=settings.max_jobs,
            lease_s=settings.job_lease_s,
            is_pinned=lambda job_id: self.pins.get(job_id) is not None,
        )
        self.admission = AdmissionController(
            host, policy, self.jobs, self.pins, self.costs, telemetry
        )
        self.listeners = Listeners(settings.listeners, self.counters, self._worker.wake)
        self.lifecycle = KVLifecycle(
            host, self.pins, self.admission.has_blocks, self.events, self.listeners
        )
        service = self.admission.shares.service.view
        policy.bind(RetainedEngine(host, self.jobs, self.pins, service))
        self.decisions = PinDecisions(
            policy, self.predictor, self._pin_manager, self.costs, telemetry, clock
        )

    def start(self) -> None:
        """Read and predict in the background from now on, where anything is read."""
        if self.policy.uses_predictions or self.inference.is_on or self.settings.show_prompts:
            self._worker.start()

    def close(self) -> None:
        """Write what must outlive the engine."""
        self.predictor.close()
        self.listeners.close()
        self.events.close()

    def _policy_failed(self, fault: Fault) -> None:
        self.counters.add("policy_faults_total")
        self._host.rules_failed("policy", fault)
        if fault.is_last:
            self._host.rank_changed(None)

    # A turn, from its arrival to its end

    def weigh(self, client: str, weight: float) -> None:
        """Note the weight of a client that is about to send a request."""
        self.admission.shares.weigh(client, weight)

    def request_arrived(self, request_id: str, num_prompt_tokens: int, client: str = "") -> None:
        """Register a request without a job."""
        order = next(self.arrivals)
        self.admission.request_arrived(request_id, order, num_prompt_tokens, client)

    def inferred_job_id(
        self, request_id: str, prompt: Sequence[int], block_hashes: Sequence[Any], client: str = ""
    ) -> str | None:
        """Key of the job that a request without a `job_id` continues or, where such requests do,
        opens; None if it does neither."""
        if not self.inference.may_know(block_hashes):
            return None
        job = self.inference.job_continued_by(prompt, block_hashes, client)
        if job is None:
            expects_job = self.inference.expects_job(block_hashes)
            return inferred_id(request_id, client) if expects_job else None
        if self.jobs.get(job.job_id) is None:
            self.jobs.add(job)
            self.admission.growth.turn_ended(job.context_tokens - job.first_prompt_tokens)
        if job.num_turns == 1:  # its second turn proves it
            self.counters.add("inferred_jobs_total")
        return job.job_id

    def turn_arrived(
        self,
        request_id: str,
        job_id: str,
        tags: Tags,
        *,
        prompt: Prompt,
        priority: int = 0,
    ) -> Turn:
        """Register a turn of a job, which is inferred unless `tags` name it; `priority` is the
        client's, lower first. Returns the turn."""
        num_prompt_tokens, block_hashes = len(prompt.token_ids), prompt.block_hashes
        now_s = self._clock()
        self.forget_idle_jobs()
        order = next(self.arrivals)
        job = self.jobs.get(job_id)
        lender = self._lender(tags, job)
        is_first = lender is None and (job is None or not job.has_run)
        if job is None:
            # A sub-agent takes the place of the job that waits for it.
            job = Job(job_id, order if lender is None else lender.order)
            job.is_inferred = tags.job_id is None
            job.first_prompt_tokens = num_prompt_tokens
            self.jobs.add(job)
        elif job.is_inferred and tags.job_id is not None:
            self.inference.forget(job)
            job.is_inferred = False
        if lender is not None:
            job.lender = lender
            lender.borrowers[job_id] = job
        # Among several clients a priority can only put a job behind others.
        best = 0 if self.admission.shares.are_many else -MAX_PRIORITY
        job.priority = max(best, min(priority, MAX_PRIORITY))
        block_tokens = self._host.pool.block_tokens
        is_new = job.take_tags(tags, num_prompt_tokens, block_hashes)
        turn = Turn(request_id, job, order, now_s, num_prompt_tokens, bool(tags.is_last_step))
        turn.is_first = is_first
        turn.common_tokens = min(
            job.common_tokens(block_hashes, block_tokens),
            (num_prompt_tokens - 1) // block_tokens * block_tokens,
        )
        is_pinned = self.pins.get(job.job_id) is not None
        turn.is_side_request = is_pinned and job.is_side_request(turn)
        self.history.turn_arrived(turn, tags, prompt)
        if not turn.is_side_request:
            self.decisions.turn_arrived(job, tags, is_new=is_new)
        self.admission.turn_arrived(turn)
        self.jobs.turns[request_id] = job.live[request_id] = turn
        self.jobs.touch(job, now_s)
        self.events.add(
            job.job_id,
            "arrival",
            turn=job.num_turns,
            prompt_length=num_prompt_tokens,
            retry=not is_new,
            **({"inferred": True} if job.is_inferred else {}),
            **({"parent": client_and_id(spawner)[1]} if (spawner := tags.parent_job_id) else {}),
        )
        self.lifecycle.turn_arrived(turn)
        return turn

    def _lender(self, tags: Tags, job: Job | None) -> Job | None:
        """The job in whose place this one stands: that of its parent, or the parent's lender.

        A parent is another job, of which a turn has run. It lends its place to MAX_SUB_AGENTS at a
        time, of those that wait, run or are pinned.
        """
        parent = None if tags.parent_job_id is None else self.jobs.get(tags.parent_job_id)
        if parent is None or parent is job or not parent.has_run:
            return None
        if job is not None and (job.lender is not None or job.has_run):
            return job.lender
        lender = parent.lender or parent
        for job_id, other in list(lender.borrowers.items()):
            if not other.live and self.pins.get(job_id) is None:
                del lender.borrowers[job_id]
        return lender if len(lender.borrowers) < MAX_SUB_AGENTS else None

    def load_began(self, request_id: str, num_tokens: int) -> None:
        """A KV connector loads `num_tokens` for a request; counted if that is its job's context."""
        turn = self.jobs.turns.get(request_id)
        if turn is not None:
            self.admission.load_began(turn)
            self.lifecycle.changed(turn.job)
            turn.loaded_tokens += num_tokens
            if turn.common_tokens:
                self.costs.offload.load_began(request_id, num_tokens)

    def loads_finished(self, request_ids: Iterable[str]) -> None:
        """The KV loads of these requests, if any were under way, have finished."""
        if self.costs.offload.is_loading:
            waited_token_s = self.costs.offload.loads_finished(request_ids)
            filled_token_s = waited_token_s * self.costs.blocks_per_token.scale
            self.admission.restored(filled_token_s / self.policy.pool_tokens)

    def turn_admitted(self, request_id: str, *, hit_tokens: int) -> None:
        """A request has its blocks: its job's pin ends, and evicted context is noticed."""
        self.admission.admitted(request_id, hit_tokens)
        turn = self.jobs.turns.get(request_id)
        if turn is None:
            return
        job, pin = turn.job, self.pins.get(turn.job.job_id)
        if pin is not None and not turn.is_side_request:
            self._pin_manager.end(pin, "returned")
            self._host.rank_changed(job.job_id)
        self._kv_changed(job)
        if turn.admitted_s is not None:
            if not turn.was_reset:
                self._recompute(turn.num_prompt_tokens - hit_tokens)
            self.history.turn_resumed(turn, turn.num_prompt_tokens - hit_tokens)
            turn.was_reset = False
            self.events.add(job.job_id, "resumed", hit_length=hit_tokens)
            return
        turn.admitted_s, turn.hit_tokens = self._clock(), hit_tokens
        self.history.turn_admitted(turn)
        waited_s = turn.admitted_s - turn.arrived_s
        self._count_admission(turn, waited_s)
        pool = self._host.pool
        dropped_tokens = pool.block_tokens if pool.drops_last_block else 0
        lost_tokens = turn.common_tokens - dropped_tokens - hit_tokens
        if lost_tokens > 0 and not job.was_reset:
            self.costs.offload.lost(lost_tokens)
            self._recompute(lost_tokens)
            job.num_evicted += 1
            self.policy.learned.queueing.observe(waited_s)
            self.events.add(job.job_id, "evicted", lost_tokens=lost_tokens)
        if job.num_turns:
            self._returning_waits.observe(waited_s)
        job.num_diverged += job.has_diverged(turn) and not turn.is_side_request
        self.events.add(
            job.job_id,
            "waiting_to_running",
            prompt_length=turn.num_prompt_tokens,
            hit_length=hit_tokens,
            expected_hit_length=turn.common_tokens,
            waited_s=round(waited_s, 6),
        )

    def _count_admission(self, turn: Turn, waited_s: float) -> None:
        turns = "first_turn" if turn.is_first else "continuing_turn"
        self.counters.observe(f"{turns}_wait_seconds", waited_s)
        if not turn.is_side_request:
            number = turn_range(turn.job.num_turns)
            self.counters.add("prompt_tokens_total", "turn", number, turn.num_prompt_tokens)
            self.counters.add("hit_tokens_total", "turn", number, turn.hit_tokens)

    def _recompute(self, num_tokens: int) -> None:
        if num_tokens > 0:
            self.admission.restored(self.costs.cost(num_tokens).pool_seconds)

    def turn_preempted(self, request_id: str) -> None:
        """A running request has lost its blocks and waits again."""
        self.counters.add("preemptions_total")
        self.admission.preempted(request_id)
        turn = self.jobs.turns.get(request_id)
        if turn is not None:
            self.events.add(turn.job.job_id, "preempted")
            self._kv_changed(turn.job)

    def keeps_blocks(self, request_id: str, *, is_finished_turn: bool, num_tokens: int) -> bool:
        """True if a turn that ends now, with `num_tokens` in the cache, keeps its blocks.

        Asked before the blocks are popped. The TTL decided here is the one that `turn_ended` pins
        them with.
        """
        turn = self.jobs.turns.get(request_id)
        if turn is None or not is_finished_turn:
            return False
        if turn.is_last_step or turn.is_side_request or turn.job.is_released:
            return False
        turn.ttl = self.policy.undecided_ttl(self.costs.cost(num_tokens))
        return turn.ttl.seconds > 0

    def turn_ended(
        self,
        request_id: str,
        *,
        is_finished_turn: bool,
        context: Context,
        order: int = 0,
        blocks: Sequence[Any] = (),
        num_exclusive_blocks: int = 0,
        fence: int = 0,
    ) -> None:
        """A request is over; `order` is the arrival number of one without a job.

        `blocks` are those kept, of which it alone holds `num_exclusive_blocks`; without any, they
        were freed.
        """
        request = self.admission.shares.get(request_id)
        client = "" if request is None else request.client
        self.admission.ended(request_id, len(context.token_ids))
        self.costs.offload.forget(request_id)
        turn = self.jobs.turns.pop(request_id, None)
        if turn is None:
            if is_finished_turn and self.inference.is_on:
                opening = Opening(request_id, order, self._clock(), context, client)
                self.inference.request_ended(opening)
            return
        job, now_s = turn.job, self._clock()
        job.live.pop(request_id, None)
        self.jobs.touch(job, now_s)
        if not is_finished_turn:
            self.events.add(job.job_id, "aborted")
            self.history.turn_aborted(turn)
            job.was_aborted = not turn.is_side_request
        elif not turn.is_side_request:
            self.history.turn_finished(
                turn,
                context,
                num_blocks=len(blocks),
                num_exclusive_blocks=num_exclusive_blocks,
                num_pinned_blocks=self.pins.num_blocks,
            )
        if is_finished_turn:
            self._note_finish(turn, context, now_s)
        self.policy.turn_finished(turn, 0.0 if turn.admitted_s is None else now_s - turn.admitted_s)
        if blocks:
            assert turn.ttl is not None
            self._pin_manager.pin(
                job,
                blocks,
                fence,
                turn.ttl,
                num_exclusive_blocks=num_exclusive_blocks,
                is_decided=not self.decisions.reads_replies_of(job),
            )
            if self._host.pool.has_one_group:
                num_shared = len(blocks) - num_exclusive_blocks
                job.prefix = SharedPrefix.of(context.block_hashes, num_shared)
                if self.policy.holds_parts:
                    self._free_what_is_not_held(job, blocks)
            self._host.rank_changed(job.job_id)
        elif (pin := self.pins.get(job.job_id)) is not None:
            self._turn_ended_without_blocks(turn, pin, is_finished_turn=is_finished_turn)
        self._kv_changed(job)
        if not job.live:
            self._only_turn_ended(turn, is_finished_turn=is_finished_turn)

    def _only_turn_ended(self, turn: Turn, *, is_finished_turn: bool) -> None:
        """A job has no turn in the engine any more: close it, or wait for what its reply runs."""
        job = turn.job
        if turn.is_last_step or job.is_released:
            self._close(job, "last_step" if turn.is_last_step else "released")
        elif is_finished_turn and not turn.is_side_request:
            self.decisions.turn_finished(job, turn.request_id)
        elif job.is_inferred and job.finished_s is None:
            self._close(job, "aborted")
        elif not turn.is_side_request:
            self.lifecycle.freed(job, "aborted")

    def _free_what_is_not_held(self, job: Job, blocks: Sequence[Any]) -> None:
        pin = self.pins.get(job.job_id)
        if pin is None or pin.blocks is not blocks:
            return  # an earlier, longer pin of the job goes on
        block_tokens = self._host.pool.block_tokens
        held_tokens = self.policy.held_tokens(self.costs.cost(len(pin.blocks) * block_tokens))
        num_freed = len(pin.blocks) - math.ceil(held_tokens / block_tokens)
        if num_freed > 0:
            self._pin_manager.take(pin, num_freed)

    def _turn_ended_without_blocks(
        self, turn: Turn, pin: Pin[Any], *, is_finished_turn: bool
    ) -> None:
        """End the job's pin if nothing will come back to it."""
        job = turn.job
        goes_on = is_finished_turn or turn.is_side_request
        if not job.live and (turn.is_last_step or not goes_on):
            self._pin_manager.end(pin, "last_step" if is_finished_turn else "aborted")
            self._host.rank_changed(job.job_id)
        elif not job.has_waiting_turn:
            # Its expiry may have passed while this turn waited, which `expire_due_pins` skips.
            self._pin_manager.reschedule(pin)

    def _note_finish(self, turn: Turn, context: Context, now_s: float) -> None:
        job = turn.job
        if not turn.is_side_request:
            added = job.finish_turn(now_s, context.num_tokens, context.checkpoints())
            self.admission.growth.turn_ended(added)
            self.lifecycle.turn_finished(job, context.block_hashes[: context.num_blocks])
            if job.is_inferred:
                self.inference.turn_finished(job, context)
        self.events.add(
            job.job_id,
            "finish",
            turn=job.num_turns,
            context_length=job.context_tokens,
            output_length=len(context.token_ids) - context.num_prompt_tokens,
        )

    # What runs between two turns, and when a pin ends

    def wants_reply(self, request_id: str) -> bool:
        """True if it matters what the reply of the request that has just ended runs."""
        return self.inference.wants_reply(request_id) or request_id in self.decisions.awaiting

    def read(self, reply: Reply, decode: Decode) -> None:
        """Have that reply read, and decide about its job's pin once that is done."""
        if self.inference.wants_reply(reply.request_id):
            self.inference.read(reply, decode)
        else:
            self.decisions.read(reply, decode)
        if not self._worker.is_started:
            self.do_what_is_due()

    def apply_predictions(self) -> None:
        """Decide about pins by what has been read and predicted. O(1) if that is nothing."""
        for fault in self.predictor.take_faults():
            self.counters.add("predictor_faults_total")
            self._host.rules_failed("predictor", fault)
        self.listeners.count_news()
        self.inference.take_found()
        for job in self.decisions.apply_predictions():
            self.inference.no_tool_called(job, self._clock())

    def tool_signal(self, job_id: str, event: ToolEvent) -> dict[str, Any] | None:
        """Take the client's report that a tool started or finished; None for an unknown job."""
        job = self.jobs.get(job_id)
        if job is None:
            return None
        self.jobs.touch(job, self._clock())
        is_taken = self.decisions.tool_signal(job, event)
        self.apply_predictions()
        self.expire_due_pins()
        return {
            "job_id": job.own_id,
            "state": event.state,
            "is_pinned": self.pins.get(job_id) is not None,
            "is_ignored": not is_taken,
        }

    def do_what_is_due(self) -> None:
        """Apply predictions, end pins and jobs, save. O(1) if nothing is due."""
        self.apply_predictions()
        self.expire_due_pins()
        for job in self.inference.pop_ended(self._clock()):
            if self.jobs.get(job.job_id) is job:
                self._end(job, "last_step", "no_tool_call")
        self.predictor.save_if_due()

    @property
    def next_due_s(self) -> float | None:
        """When there will be something to do, as far as is known now."""
        times_s = (self.pins.next_expiry_s, self.inference.next_end_s, self.predictor.next_save_s)
        return min([time_s for time_s in times_s if time_s is not None], default=None)

    def expire_due_pins(self) -> None:
        """End pins whose TTL is over, except of jobs whose next turn waits. O(1) if none is.

        A TTL of 0 is what a decision gives a tool that takes too long.
        """
        while (pin := self.pins.pop_due(self._clock())) is not None:
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

    def release(self, job_id: str) -> dict[str, Any] | None:
        """End a job at the client's word: free its pin now; None for an unknown job."""
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
        return {"job_id": job.own_id, "freed_blocks": freed_blocks}

    def forget_idle_jobs(self) -> None:
        """Forget jobs whose lease is over, and the longest idle ones beyond `max_jobs`."""
        now_s = self._clock()
        while (job := self.jobs.next_to_forget(now_s)) is not None:
            self._end(job, "forgotten", "lease")

    def cache_reset(self) -> None:
        """vLLM's prefix cache is about to be reset: end all pins."""
        for pin in list(self.pins):
            self.end_pin(pin, "reset")
        for job in self.jobs:
            job.was_reset = True
        for turn in self.jobs.turns.values():
            turn.was_reset = turn.admitted_s is not None
        self.history.cache_reset()

    def pause_changed(self) -> None:
        """vLLM is about to pause or to go on: the time between two turns says nothing of a tool if
        that is in between."""
        for job in self.jobs:
            job.has_paused = True
        self.costs.offload.paused()

    def end_pin(self, pin: Pin[Any], reason: PinEnd) -> None:
        self._pin_manager.end(pin, reason)
        self._pin_changed(pin.job_id)

    def _pin_changed(self, job_id: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None:
            self._kv_changed(job)
        self._host.rank_changed(job_id)

    def _kv_changed(self, job: Job) -> None:
        self.admission.kv_changed(job.job_id)
        self.lifecycle.changed(job)

    def _end(self, job: Job, pin_end: PinEnd, reason: FreeReason) -> None:
        pin = self.pins.get(job.job_id)
        if pin is not None:
            self.end_pin(pin, pin_end)
        self._close(job, reason)

    def _close(self, job: Job, reason: FreeReason) -> None:
        self.decisions.job_closed(job, reason)
        self.history.job_ended(job.job_id, reason)
        self.policy.learned.memoryfulness.observe(max(job.num_turns, 1))
        self.jobs.remove(job)
        self.inference.forget(job)
        self.policy.job_ended(job)
        self.admission.job_ended(job)
        self.lifecycle.job_ended(job, reason)
        self.events.add(job.job_id, "closed", reason=reason, turns=job.num_turns)

    # Order, victims and memory

    def step_begins(self, num_left_waiting: int) -> None:
        """Bring everything up to date before the scheduler looks at its queue, in which the step
        before has left some requests."""
        self.do_what_is_due()
        self.history.step_begins()
        self.admission.step_begins(num_left_waiting)

    @property
    def next_tick_s(self) -> float:
        """When the policy's `tick` is due; infinity without one."""
        return self.admission.next_tick_s

    @property
    def has_running_turns(self) -> bool:
        """True if any turn of a job holds blocks."""
        return self.admission.has_running_turns

    @property
    def is_memory_short(self) -> bool:
        """True for a while after something did not fit."""
        return self.admission.is_memory_short

    def rank(self, request_id: str, *, is_preempted: bool) -> QueueRank | None:
        """Place in the waiting queue; None for stock's."""
        return self.admission.rank(request_id, is_preempted=is_preempted)

    def place(self, client: str) -> ClientPlace:
        """A client's place in the waiting queue, as of now."""
        return self.admission.shares.place(client)

    def victim_rank(self, request_id: str) -> QueueRank | None:
        """Place among running requests, the largest is preempted first; None without a job."""
        return self.admission.victim_rank(request_id)

    def may_start(
        self,
        request_id: str,
        *,
        num_running: int,
        num_free_blocks: int,
        prefix: SharedPrefix | None = None,
    ) -> bool:
        """False if a waiting request opens a job that is held back for now.

        `prefix` is the part of its prompt that is in the cache and that others hold.
        """
        return self.admission.may_start(
            request_id, num_running=num_running, num_free_blocks=num_free_blocks, prefix=prefix
        )

    def pins_to_take(
        self, request_id: str, *, has_blocks: bool, num_running: int, missing_blocks: int
    ) -> Sequence[Pin[Any]]:
        """Pins to take blocks from for an allocation that failed, in order.

        The request's own pin, whose blocks it may be about to use, comes last.
        """
        turn = self.jobs.turns.get(request_id)
        common_tokens = 0 if turn is None else turn.common_tokens
        pins = self.admission.pins_to_take(
            request_id,
            AllocationRequest(
                turn,
                has_blocks,
                num_running,
                missing_blocks,
                is_starved=self.admission.is_starved(request_id),
                common_blocks=round(self.costs.blocks_per_token.blocks(common_tokens)),
            ),
        )
        own = None if turn is None else self.pins.get(turn.job.job_id)
        return pins if own is None else sorted(pins, key=lambda pin: pin is own)

    def report(self) -> tuple[float, list[float]]:
        """What the balancer weighs: mean wait of returning turns, and seconds of a prefill."""
        reload = self.costs.step_time.reload
        coefficients = [reload.constant_s, reload.linear_s, reload.quadratic_s]
        return self._returning_waits.mean_s, coefficients

    def learned(self) -> dict[str, Any]:
        """What the engine has learned, as `/v1/agentkv/stats` shows it."""
        learned, step_time, offload = self.policy.learned, self.costs.step_time, self.costs.offload
        reload = step_time.reload
        return {
            "tool_durations": learned.durations.num_observed,
            "queueing_delay_s": learned.queueing.mean_s,
            "eta": learned.memoryfulness.eta,
            "prefill_reload_s": [reload.constant_s, reload.linear_s, reload.quadratic_s],
            "compute_worth": step_time.compute_weight,
            "load_token_s": offload.load_token_s,
            "loaded_share": offload.loaded_share,
            "idle_weight": self.admission.idle_kv_weight,
        }
