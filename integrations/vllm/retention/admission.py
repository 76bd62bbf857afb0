"""Decides who gets memory when it does not suffice for all: order, victims, pins to take, new jobs.

RetentionManager reports what requests do; the scheduler's questions end here, and the policy's
rules answer them. Knows blocks only as numbers. Every call is O(log jobs), except that pins are
looked through when a new job asks, and sorted once when they must yield.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from agentkv.events import HeldBack, Overdue
from agentkv.policies.base import UNPINNED, AdmissionRequest, AllocationRequest, Policy
from agentkv.policies.forecast import JobDemand, JobGrowth, KVDemandForecast, SharedPrefix
from agentkv.policies.jobs import Job, Turn
from agentkv.policies.pins import Pin
from agentkv.watchers import EventStream

from . import FIRST, IN_ORDER, LAST, Host, QueueRank
from .costs import RestoreCostModel
from .jobs import JobTable
from .pins import PinTable
from .shares import ClientShares
from .waiting import AgingQueue, IdleKVDiscount, StarvationGuard

BEHIND_AN_OVERDUE = "a job that came before it has waited for longer than the patience"
BEHIND_ONE_HELD_BACK = "a new job of its client is held back"
MAX_IDLE_WAITS = 2
"""No first turn waits for idle KV for longer than this many times `patience_s`."""
MAX_SHORT_S = 60.0
"""Memory is reported as short for at most this long after it was: the rules of most policies hold
for ever from the first shortage on, or always, and say nothing of now."""


class AdmissionController:
    """Decides about the requests of one engine that want memory or hold it."""

    def __init__(
        self,
        host: Host,
        policy: Policy,
        jobs: JobTable,
        pins: PinTable[Any],
        costs: RestoreCostModel,
        stream: EventStream,
    ) -> None:
        """`host` hears which places in the queue change; the rest is read, and kept by others."""
        self.growth = JobGrowth()
        self._host = host
        self._policy = policy
        self._jobs = jobs
        self._pins = pins
        self._costs = costs
        self._blocks_of = costs.blocks_per_token.blocks
        self._emit = stream.emit
        self._forecast = KVDemandForecast()
        self.shares = ClientShares(host, pins, costs.blocks_per_token, policy.settings.client_share)
        self._discount = IdleKVDiscount()
        self.guard = StarvationGuard()
        self._aging = AgingQueue(policy.settings.patience_s)
        self._admitted: set[str] = set()
        """Turns of jobs that hold blocks."""
        self._aged_out_newcomers: dict[str, str] = {}
        """First turns that have aged out and still wait, with their clients."""
        self._refused: set[str] = set()
        """Clients whose new jobs wait behind all since one did not fit: else each costs a step."""
        self._above: frozenset[str] = frozenset()
        """Clients above their share, for the ranks: as they were when the step began."""
        self._gated: dict[str, Turn] = {}
        """Returning turns that the policy does not let in yet."""
        self.next_tick_s = math.inf if policy.tick_s is None else -math.inf
        """When the policy's `tick` is due."""
        self._short_until_s = -math.inf

    # What requests do

    def request_arrived(
        self, request_id: str, order: int, num_prompt_tokens: int, client: str = ""
    ) -> None:
        """A request without a job waits from now on."""
        now_s = self._host.clock()
        self.shares.arrived(request_id, client, order, num_prompt_tokens, now_s)
        self.guard.add(request_id, order)

    def turn_arrived(self, turn: Turn) -> None:
        """A turn of a job waits from now on."""
        client, num_tokens = turn.job.client, turn.num_prompt_tokens
        self.shares.arrived(turn.request_id, client, turn.order, num_tokens, turn.arrived_s)
        self._aging.add(turn)
        if turn.is_first:
            self.guard.add(turn.request_id, turn.order)
            clients = self._aged_out_newcomers.values()
            if client in clients and self._policy.has_admission_control:
                self._hold_back(turn, BEHIND_AN_OVERDUE)
            elif client in self._refused:
                self._hold_back(turn, BEHIND_ONE_HELD_BACK)

    def takes_place(self, turn: Turn) -> None:
        """A first turn stands in its parent's place from now on: nothing holds it back."""
        if turn.admitted_s is None:
            self._aged_out_newcomers.pop(turn.request_id, None)
            if turn.held_back is not None:
                turn.held_back = None
                self._discount.left()
        self._host.rank_changed(None)

    def admitted(self, request_id: str, turn: Turn | None, hit_tokens: int) -> None:
        """A request has its blocks, of which `hit_tokens` were in the cache; `turn` is None for one
        without a job."""
        self.shares.admitted(request_id, hit_tokens)
        if turn is None:
            self._overtake(self.guard.arrival_of(request_id))
        elif turn.admitted_s is None and not turn.is_first:
            self._overtake(turn.order)
        if turn is None or turn.is_first:
            self.guard.admitted(request_id)
            self._refused.discard("" if turn is None else turn.job.client)
        if turn is not None:
            self._holds_blocks(turn)
            turn.has_aged_out = False

    def has_started(self, request_id: str, num_loaded: int = 0) -> None:
        """A request has blocks; if it opens a job, those of the same step are asked about with it.

        A turn into whose blocks a KV connector loads `num_loaded` tokens counts as admitted, even
        if that fails: the engine serves it first. What is loaded counts if it is of its job.
        """
        turn = self._jobs.turns.get(request_id)
        if turn is None:
            return
        if turn.is_first and self._policy.has_admission_control:
            demand = self._demand(turn.job, self._blocks_of(turn.num_prompt_tokens))
            self._forecast.put(turn.job.job_id, demand)
        if num_loaded:
            self._holds_blocks(turn)
            self.kv_changed(turn.job)
            turn.loaded_tokens += num_loaded
            if turn.common_tokens:
                self._costs.offload.load_began(request_id, num_loaded)

    def loads_finished(self, request_ids: Iterable[str]) -> None:
        """The KV loads of these requests, if any were under way, have finished."""
        if self._costs.offload.is_loading:
            waited_token_s = self._costs.offload.loads_finished(request_ids)
            filled_token_s = waited_token_s * self._costs.blocks_per_token.scale
            self.restored(filled_token_s / self._policy.pool_tokens)

    def has_blocks(self, request_id: str) -> bool:
        """Return whether a request of a job runs, or has blocks that a KV connector fills."""
        return request_id in self._admitted

    def _holds_blocks(self, turn: Turn) -> None:
        self._admitted.add(turn.request_id)
        self._stop_waiting(turn)
        turn.job.has_run = True

    def preempted(self, request_id: str) -> None:
        """A request has lost its blocks, and waits again."""
        self._admitted.discard(request_id)

    def ended(self, request_id: str, turn: Turn | None, num_tokens: int) -> str:
        """A request is over, with `num_tokens` of prompt and reply; returns its client."""
        if turn is None or turn.is_first:
            self.guard.ended(request_id)
        if request_id in self._admitted:
            self._admitted.remove(request_id)
        elif turn is not None:
            self._stop_waiting(turn)
        return self.shares.ended(request_id, num_tokens)

    def _stop_waiting(self, turn: Turn) -> None:
        self._aged_out_newcomers.pop(turn.request_id, None)
        self._gated.pop(turn.request_id, None)
        if turn.held_back is not None:
            turn.held_back = None
            if turn.is_first:
                self._discount.left()

    def _overtake(self, order: int | None) -> None:
        """A request that opens no job has blocks, which may starve the first that waits."""
        if order is None or not (self._policy.pressure.is_on and self.guard.waiting):
            return
        num_jobs = max(1, len(self._admitted) + len(self._pins))
        first = next(iter(self.guard.waiting))
        turn, live = self._jobs.turns.get(first), self.shares.get(first)
        kind, client = turn and turn.job.kind, "" if live is None else live.client
        max_overtakes = self._policy.max_overtakes(self.growth.mean_turns(client, kind) * num_jobs)
        if self.guard.overtaken_by(order, max_overtakes) is None:
            return
        if turn is not None:
            self._emit(Overdue, turn.job.job_id, round(max_overtakes))
        self._host.rank_changed(None if turn is None else turn.job.job_id)

    def step_begins(self, num_left_waiting: int) -> None:
        """End shortages, let turns in, mark those that have aged out. O(1) without any."""
        now_s = self._host.clock()
        tick_s = self._policy.tick_s
        if tick_s is not None and now_s >= self.next_tick_s:
            self.next_tick_s = now_s + tick_s
            if self._policy.tick():
                self._host.rank_changed(None)
        for gated in list(self._gated.values()):
            if self._why_wait(gated) is None:
                del self._gated[gated.request_id]
                gated.held_back = None
                self._host.rank_changed(gated.job.job_id)
        if self._policy.pressure.fall(now_s):
            self._host.rank_changed(None)
        if not self.is_memory_short:
            self._refused.clear()
        self.shares.is_short = self.is_memory_short or num_left_waiting > 0
        if self.shares.is_short and self._have_shares_changed():
            self._host.rank_changed(None)
        while (turn := self._aging.pop_aged_out(now_s)) is not None:
            turn.has_aged_out = True
            self._host.rank_changed(turn.job.job_id)
            if turn.is_first and not turn.job.has_run:
                self._admit_no_later_job(turn)

    def _admit_no_later_job(self, turn: Turn) -> None:
        """Hold back all jobs of the client that came after a new one that has aged out, if any are
        held back."""
        client = turn.job.client
        clients = self._aged_out_newcomers.values()
        if client not in clients and self._policy.has_admission_control:
            self._hold_back_others(turn, BEHIND_AN_OVERDUE)
        self._aged_out_newcomers[turn.request_id] = client

    def _hold_back_others(self, turn: Turn, reason: str) -> None:
        """Hold back the new jobs of a turn's client that came after it. O(turns)."""
        for other in self._jobs.turns.values():
            is_later = other.is_first and not other.job.has_run and other.order > turn.order
            is_later = is_later and other.job.lender is None
            if is_later and other.job.client == turn.job.client:
                self._hold_back(other, reason)

    # What jobs hold

    def kv_changed(self, job: Job) -> None:
        """Update the forecast of a job whose turns or pin have changed. O(turns of the job)."""
        if not self._policy.has_admission_control:
            return
        live, admitted = job.live.values(), self._admitted
        prompts = live and [turn.num_prompt_tokens for turn in live if turn.request_id in admitted]
        if prompts:
            num_blocks = self._blocks_of(max(*prompts, job.context_tokens))
            self._forecast.put(job.job_id, self._demand(job, num_blocks))
        elif (pin := self._pins.get(job.job_id)) is not None:
            is_all = self._host.pool.has_one_group  # else the job runs with more
            num_blocks = len(pin.blocks) if is_all else self._blocks_of(job.context_tokens + 1)
            self._forecast.put(job.job_id, self._demand(job, num_blocks, is_idle=True))
        else:
            self._forecast.remove(job.job_id)

    def job_ended(self, job: Job) -> None:
        """A job is over, or forgotten."""
        self.growth.job_ended(job)
        self._forecast.remove(job.job_id)

    def recomputed(self, num_tokens: int) -> None:
        """Record the cost of computing a context, or its end, again."""
        if num_tokens > 0:
            self.restored(self._costs.cost(num_tokens).pool_seconds)

    def restored(self, pool_seconds: float) -> None:
        """Record the cost of restoring an evicted context, in pool-seconds."""
        self._discount.restored(self._host.clock(), pool_seconds)

    @property
    def idle_kv_weight(self) -> float:
        """Share of pinned KV that counts when a new job asks for memory."""
        return self._discount.idle_kv_weight

    def _demand(self, job: Job, num_blocks: float, *, is_idle: bool = False) -> JobDemand:
        """Make the demand of a job: its blocks, its turns from now on, and what each adds."""
        growth = self._costs.blocks_per_token.scale / self._host.pool.block_tokens
        if (blocks := self._costs.blocks_per_token).varies:
            growth = blocks.growth(job.context_tokens or job.first_prompt_tokens)
        added, turns_left = self.growth.tokens_per_turn(job), self.growth.turns_left(job) + 1.0
        return JobDemand(num_blocks, turns_left, added * growth, is_idle, job.prefix)

    # What the scheduler asks

    @property
    def has_running_turns(self) -> bool:
        """Return whether any turn of a job holds blocks."""
        return bool(self._admitted)

    def rank(self, request_id: str, *, is_preempted: bool) -> QueueRank | None:
        """Place in the waiting queue among the requests of its client; None for a request without a
        job, unless it is starved."""
        is_short = self._policy.pressure.is_on
        if is_short and self.guard.is_starved(request_id):
            return (FIRST, *self._policy.starved_rank)
        turn = self._jobs.turns.get(request_id)
        if turn is None:
            return None
        is_pinned = self._pins.get(turn.job.job_id) is not None
        rank = self._policy.rank(turn, is_preempted=is_preempted, is_pinned=is_pinned)
        return (LAST if is_short and turn.held_back is not None else IN_ORDER, *rank)

    def victim_rank(self, request_id: str) -> QueueRank | None:
        """Place among running requests, of which the largest is preempted first; None without a
        job, unless its client is above its share."""
        if self.guard.is_starved(request_id):
            return (FIRST, *self._policy.starved_rank)
        turn = self._jobs.turns.get(request_id)
        rank = None if turn is None else self._policy.victim_rank(turn)
        request = self.shares.get(request_id)
        if request is not None and request.client in self._above:
            return (LAST, *(rank or (UNPINNED, request.order, 0)))
        return None if rank is None else (IN_ORDER, *rank)

    def may_start(
        self,
        request_id: str,
        *,
        num_running: int,
        num_free_blocks: int,
        prefix: SharedPrefix | None = None,
    ) -> bool:
        """False if the policy holds a waiting turn back for now: a new job's, or a returning one.

        Nothing is held back while nothing runs, or once it is starved. `prefix` is the part of its
        prompt that others hold.
        """
        turn = self._jobs.turns.get(request_id)
        if turn is not None and not turn.job.has_run and turn.job.prefix != prefix:
            turn.job.prefix = prefix
            self._share_with_siblings(turn.job)
        if turn is None or not num_running or self.guard.is_starved(request_id):
            return True
        if not turn.is_first:
            return self._may_return(turn)
        if turn.job.has_run or turn.job.lender or not self._policy.has_admission_control:
            return True
        pool = self._host.pool
        newcomer = self._demand(turn.job, self._blocks_of(turn.num_prompt_tokens))
        idle_weight, now_s = self._idle_weight_for(turn), self._host.clock()
        doubtful = [pin for pin in self._pins if pin.doubtful_s <= now_s]
        for pin in doubtful:
            self._forecast.remove(pin.job_id)
        uncounted_share = 1.0 - idle_weight if turn.has_aged_out else 0.0
        idle_blocks = round(uncounted_share * self._pins.num_blocks)
        num_free_blocks += max(idle_blocks, sum(pin.num_exclusive_blocks for pin in doubtful))
        request = AdmissionRequest(
            pool.num_blocks, num_free_blocks, newcomer, self._forecast, idle_weight, turn
        )
        reason = self._policy.why_hold_back(request)
        if reason is not None and self._fits_into_share(turn, newcomer.num_blocks):
            self._memory_ran_short(turn.num_prompt_tokens)
            reason = None
        self._discount.asked(
            self._host.clock(),
            is_held_back=reason is not None,
            idle_share=self._pins.num_blocks / pool.num_blocks,
            memory_s=self._pressure_s(turn.num_prompt_tokens),
        )
        if reason is not None:
            self._memory_ran_short(turn.num_prompt_tokens)
            self._hold_back(turn, reason)
            if turn.job.client not in self._refused and self.shares.are_many:
                self._refused.add(turn.job.client)
                self._hold_back_others(turn, BEHIND_ONE_HELD_BACK)
        return reason is None

    def _share_with_siblings(self, job: Job) -> None:
        """Let running jobs of the same prompt know that others share it. O(turns), once a job."""
        for turn in self._jobs.turns.values():
            other = turn.job
            is_sibling = other is not job and other.fingerprint == job.fingerprint
            if is_sibling and other.has_run and other.prefix is None:
                other.prefix = job.prefix
                self.kv_changed(other)

    def _fits_into_share(self, turn: Turn, num_blocks: float) -> bool:
        """True if there are several clients, and a new job of `num_blocks` fits into what its own
        has left of its share, or that is within its share and has waited out the patience."""
        client = turn.job.client
        if not self.shares.are_many or client in self.shares.measure():
            return False
        waited_s = self._host.clock() - turn.arrived_s
        is_overdue = waited_s > self._policy.settings.patience_s
        return is_overdue or num_blocks <= self.shares.num_spare_blocks(client)

    def _idle_weight_for(self, turn: Turn) -> float:
        """Share of idle KV that counts against a first turn: none once it has waited too long."""
        max_wait_s = MAX_IDLE_WAITS * self._policy.settings.patience_s
        waited_s = self._host.clock() - turn.arrived_s
        return 0.0 if turn.has_aged_out and waited_s > max_wait_s else self.idle_kv_weight

    def _may_return(self, turn: Turn) -> bool:
        reason = self._why_wait(turn) if self._policy.has_gate else None
        if reason is not None:
            self._memory_ran_short(turn.num_prompt_tokens)
            self._gated[turn.request_id] = turn
            self._hold_back(turn, reason)
        return reason is None

    def _why_wait(self, turn: Turn) -> str | None:
        """Why a returning turn is not let in; None once it was let in before, or for too long."""
        waited_s = self._host.clock() - turn.arrived_s
        if turn.admitted_s is not None or waited_s >= self._policy.max_wait_s:
            return None
        return self._policy.why_wait(turn)

    def _hold_back(self, turn: Turn, reason: str) -> None:
        if turn.held_back is None:
            turn.held_back = reason
            self._emit(HeldBack, turn.job.job_id, turn, reason)
            self._host.rank_changed(turn.job.job_id)

    def pins_to_take(
        self, request_id: str, *, has_blocks: bool, num_running: int, missing_blocks: int
    ) -> Sequence[Pin[Any]]:
        """Pins to take blocks from for an allocation that failed, in order; the request's own,
        whose blocks it may be about to use, comes last."""
        turn = self._jobs.turns.get(request_id)
        num_tokens, common_tokens = missing_blocks * self._host.pool.block_tokens, 0
        if turn is not None:
            num_tokens, common_tokens = turn.num_prompt_tokens, turn.common_tokens
        self._memory_ran_short(num_tokens)
        if not len(self._pins):
            return ()
        request = AllocationRequest(
            *(turn, has_blocks, num_running, missing_blocks),
            is_starved=self.guard.is_starved(request_id),
            common_blocks=self._blocks_of(common_tokens, is_held=True),
            now_s=self._host.clock(),
        )
        pins = self._pins.newest_first()
        if self.shares.are_many:
            pins = self.shares.pins_that_yield(self._policy, pins, request_id, request)
        else:
            pins = self._policy.pins_that_yield(pins, request)
        own = None if turn is None else self._pins.get(turn.job.job_id)
        return pins if own is None else sorted(pins, key=lambda pin: pin is own)

    def _memory_ran_short(self, num_tokens: int) -> None:
        """A context of `num_tokens` did not fit."""
        now_s, lasting_s = self._host.clock(), self._pressure_s(num_tokens)
        was_short = self.is_memory_short
        self._short_until_s = max(self._short_until_s, now_s + min(lasting_s, MAX_SHORT_S))
        has_risen = self._policy.pressure.rise(now_s, lasting_s)
        if has_risen or (not was_short and self.shares.are_many):
            self.shares.is_short = True
            self._have_shares_changed()
            self._host.rank_changed(None)

    @property
    def is_memory_short(self) -> bool:
        """True for a while after something did not fit: rules between clients depend on it."""
        return self._host.clock() < self._short_until_s

    def _have_shares_changed(self) -> bool:
        """Take the clients that are above their share now for the ranks; True if others are."""
        before = self._above
        self._above = self.shares.measure()
        return self._above != before

    def _pressure_s(self, num_tokens: int) -> float:
        return self._policy.pressure_s(self._costs.cost(num_tokens))
