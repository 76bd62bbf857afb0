"""Decides who gets memory when it does not suffice for all: order, victims, pins to take, new jobs.

RetentionManager reports what requests do; the scheduler's questions end here, and the policy's
rules answer them. Knows blocks only as numbers. Every call is O(log jobs), except that pins are
sorted once when they must yield.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentkv.policies.base import UNPINNED, AdmissionRequest, AllocationRequest, Policy
from agentkv.policies.forecast import JobDemand, KVDemandForecast, SharedPrefix
from agentkv.policies.jobs import Job, Turn
from agentkv.policies.pins import Pin

from ..telemetry import Telemetry
from . import FIRST, IN_ORDER, LAST, Host, QueueRank
from .costs import RestoreCostModel
from .growth import JobGrowth
from .jobs import JobTable
from .pin_lifecycle import PinTable
from .shares import ClientShares

BEHIND_AN_OVERDUE = "a job that came before it has waited for longer than the patience"
MAX_IDLE_WAITS = 2
"""No first turn waits for idle KV for longer than this many times `patience_s`."""
MAX_SHORT_S = 60.0
"""Memory is reported as short for at most this long after it was: the rules of most policies hold
for ever from the first shortage on, or always, and say nothing of now."""
DISCOUNT_PRIOR = 0.025
"""Added to both sums of IdleKVDiscount, as a share of `memory_s`, so that little of either decides
nothing. With `memory_s` ten break-even times that is a quarter of one: without it the first seconds
decide, with four times as much short jobs wait too long (studies/policy_grid/findings.md)."""


class StarvationGuard:
    """Finds new jobs, and requests without a job, that too many later turns have overtaken.

    They wait here in order of arrival until they have blocks; only the first can become starved.
    Every operation but `len` is O(1).
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._starved: set[str] = set()
        self._num_overtakes = 0

    def __len__(self) -> int:
        """Requests that wait or are starved."""
        return len(self._waiting.keys() | self._starved)

    def add(self, request_id: str, order: int) -> None:
        """A request with this arrival number waits from now on."""
        self._waiting[request_id] = order

    def arrival_of(self, request_id: str) -> int | None:
        """Arrival number of a waiting request, or None if it does not wait."""
        return self._waiting.get(request_id)

    def admitted(self, request_id: str) -> None:
        """A request has its blocks; if it was the first, the count starts again for the next."""
        if request_id == self._first:
            self._num_overtakes = 0
        self._stop_waiting(request_id)

    def ended(self, request_id: str) -> None:
        """A request is over; if it never had blocks, the next one inherits the count."""
        self._stop_waiting(request_id)
        self._starved.discard(request_id)

    def _stop_waiting(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        if not self._waiting:
            self._num_overtakes = 0

    @property
    def _first(self) -> str | None:
        return next(iter(self._waiting), None)

    def overtaken_by(self, order: int, max_overtakes: float) -> str | None:
        """A request with this arrival number, which opens no job, has its blocks.

        Returns the first waiting request if that makes it starved.
        """
        first = self._first
        if first is None or first in self._starved or order <= self._waiting[first]:
            return None
        self._num_overtakes += 1
        if self._num_overtakes <= max_overtakes:
            return None
        self._starved.add(first)
        return first

    def is_starved(self, request_id: str) -> bool:
        """True from when a request is starved until it ends, also while it runs."""
        return request_id in self._starved


class AgingQueue:
    """Finds turns that have waited for their first blocks longer than the patience.

    A turn that is preempted later does not age again: measured, going first each time lets such
    turns take memory from each other (studies/policy_grid/findings.md). O(1) on average.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: deque[Turn] = deque()

    def add(self, turn: Turn) -> None:
        """A turn has arrived and waits from now on."""
        self._waiting.append(turn)

    def pop_aged_out(self, now_s: float) -> Turn | None:
        """A turn that still waits after `patience_s`, each once; None if there is none."""
        while self._waiting and now_s - self._waiting[0].arrived_s > self._patience_s:
            turn = self._waiting.popleft()
            if turn.admitted_s is None and turn.request_id in turn.job.live:
                return turn
        return None


class IdleKVDiscount:
    """Compares what holding idle KV has cost with what restoring contexts has cost.

    Both are sums in seconds of the whole pool: idle memory while a new job was held back, and
    recomputing (see RestoreCost.pool_seconds) or the memory that waited for a tier's loads. The
    past decays by 1/e in `memory_s`.
    """

    def __init__(self) -> None:
        self._held_s = 0.0
        self._restored_s = 0.0
        self._memory_s = 0.0
        self._now_s = 0.0
        self._asked_s = 0.0
        self._is_held_back = False

    def asked(
        self, now_s: float, *, is_held_back: bool, idle_share: float, memory_s: float
    ) -> None:
        """A new job is admitted or held back; pins hold `idle_share` of the pool, 0 to 1."""
        elapsed_s = now_s - self._asked_s
        self._memory_s = memory_s
        self._decay(now_s)
        if self._is_held_back:
            self._held_s += idle_share * elapsed_s
        self._asked_s = now_s
        self._is_held_back = is_held_back

    def left(self) -> None:
        """A job that was held back waits no more; if others do, they ask again."""
        self._is_held_back = False

    def restored(self, now_s: float, pool_seconds: float) -> None:
        """Record the cost of restoring an evicted context, in pool-seconds."""
        self._decay(now_s)
        self._restored_s += pool_seconds

    def _decay(self, now_s: float) -> None:
        kept = math.exp((self._now_s - now_s) / self._memory_s) if self._memory_s else 0.0
        self._restored_s *= kept
        self._held_s *= kept
        self._now_s = now_s

    @property
    def idle_kv_weight(self) -> float:
        """Share of idle KV that counts when a new job asks for memory: restoring cost over holding
        cost, at most 1."""
        prior_s = DISCOUNT_PRIOR * self._memory_s
        held_s = self._held_s + prior_s
        return min(1.0, (self._restored_s + prior_s) / held_s) if held_s else 1.0


class AdmissionController:
    """The requests of one engine that want memory or hold it."""

    def __init__(
        self,
        host: Host,
        policy: Policy,
        jobs: JobTable,
        pins: PinTable[Any],
        costs: RestoreCostModel,
        telemetry: Telemetry,
    ) -> None:
        """`host` hears which places in the queue change; the rest is read, and kept by others."""
        self.growth = JobGrowth()
        self._host = host
        self._policy = policy
        self._jobs = jobs
        self._pins = pins
        self._costs = costs
        self._counters = telemetry.counters
        self._events = telemetry.events
        self._forecast = KVDemandForecast()
        self.shares = ClientShares(host, pins, costs.blocks_per_token, policy.settings.client_share)
        self._discount = IdleKVDiscount()
        self.guard = StarvationGuard()
        self._aging = AgingQueue(policy.settings.patience_s)
        self._admitted: set[str] = set()
        """Turns of jobs that hold blocks."""
        self._aged_out_newcomers: dict[str, str] = {}
        """First turns that have aged out and still wait, with their clients."""
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
        self.shares.arrived(request_id, client, order, num_prompt_tokens)
        self.guard.add(request_id, order)

    def turn_arrived(self, turn: Turn) -> None:
        """A turn of a job waits from now on."""
        client, num_tokens = turn.job.client, turn.num_prompt_tokens
        self.shares.arrived(turn.request_id, client, turn.order, num_tokens)
        self._aging.add(turn)
        if turn.is_first:
            self.guard.add(turn.request_id, turn.order)
            clients = self._aged_out_newcomers.values()
            if client in clients and self._policy.has_admission_control:
                self._hold_back(turn, BEHIND_AN_OVERDUE)

    def admitted(self, request_id: str, hit_tokens: int) -> None:
        """A request has its blocks, of which `hit_tokens` were in the cache."""
        self.shares.admitted(request_id, hit_tokens)
        turn = self._jobs.turns.get(request_id)
        if turn is None:
            self._overtake(self.guard.arrival_of(request_id))
        elif turn.admitted_s is None and not turn.is_first:
            self._overtake(turn.order)
        if turn is None or turn.is_first:
            self.guard.admitted(request_id)
        if turn is not None:
            self._holds_blocks(turn)
            turn.has_aged_out = False

    def load_began(self, turn: Turn) -> None:
        """A turn has blocks that a KV connector fills before it runs.

        It counts as admitted, even if the load fails: the engine serves it before all that wait.
        """
        self._holds_blocks(turn)
        self.kv_changed(turn.job.job_id)

    def has_blocks(self, request_id: str) -> bool:
        """Whether a request of a job runs, or has blocks that a KV connector fills."""
        return request_id in self._admitted

    def _holds_blocks(self, turn: Turn) -> None:
        self._admitted.add(turn.request_id)
        self._stop_waiting(turn)
        turn.job.has_run = True

    def preempted(self, request_id: str) -> None:
        """A request has lost its blocks, and waits again."""
        self._admitted.discard(request_id)

    def ended(self, request_id: str, num_tokens: int) -> None:
        """A request is over, with `num_tokens` of prompt and reply, even if it never had blocks.
        The job table still has its turn."""
        self.shares.ended(request_id, num_tokens)
        self.guard.ended(request_id)
        self._admitted.discard(request_id)
        turn = self._jobs.turns.get(request_id)
        if turn is not None:
            self._stop_waiting(turn)

    def _stop_waiting(self, turn: Turn) -> None:
        self._aged_out_newcomers.pop(turn.request_id, None)
        self._gated.pop(turn.request_id, None)
        if turn.is_held_back:
            turn.is_held_back = False
            if turn.is_first:
                self._discount.left()

    def _overtake(self, order: int | None) -> None:
        """A request that opens no job has blocks, which may starve the first that waits."""
        if order is None or not self._policy.pressure.is_on:
            return
        num_jobs = max(1, len(self._admitted) + len(self._pins))
        max_overtakes = self._policy.max_overtakes(self.growth.mean_turns * num_jobs)
        request_id = self.guard.overtaken_by(order, max_overtakes)
        if request_id is None:
            return
        starved = self._jobs.turns.get(request_id)
        if starved is not None:
            self._events.add(starved.job.job_id, "due", passed=round(max_overtakes))
        self._host.rank_changed(None if starved is None else starved.job.job_id)

    def step_begins(self, num_left_waiting: int) -> None:
        """End shortages, let turns in, and mark those that have aged out. O(1) without any.

        The step before has left `num_left_waiting` requests waiting.
        """
        now_s = self._host.clock()
        tick_s = self._policy.tick_s
        if tick_s is not None and now_s >= self.next_tick_s:
            self.next_tick_s = now_s + tick_s
            if self._policy.tick():
                self._host.rank_changed(None)
        for gated in list(self._gated.values()):
            if self._why_wait(gated) is None:
                del self._gated[gated.request_id]
                gated.is_held_back = False
                self._host.rank_changed(gated.job.job_id)
        if self._policy.pressure.fall(now_s):
            self._host.rank_changed(None)
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
            for other in self._jobs.turns.values():
                is_later = other.is_first and not other.job.has_run and other.order > turn.order
                if is_later and other.job.client == client:
                    self._hold_back(other, BEHIND_AN_OVERDUE)
        self._aged_out_newcomers[turn.request_id] = client

    # What jobs hold

    def kv_changed(self, job_id: str) -> None:
        """Update the forecast of a job whose turns or pin have changed. O(turns of the job)."""
        if not self._policy.has_admission_control:
            return
        job, pin = self._jobs.get(job_id), self._pins.get(job_id)
        turns = () if job is None else job.live.values()
        prompts = [turn.num_prompt_tokens for turn in turns if turn.request_id in self._admitted]
        if job is not None and prompts:
            num_blocks = self._costs.blocks_per_token.blocks(max(*prompts, job.context_tokens))
            self._forecast.put(job_id, self._demand(job, num_blocks))
        elif job is not None and pin is not None:
            self._forecast.put(job_id, self._demand(job, len(pin.blocks), is_idle=True))
        else:
            self._forecast.remove(job_id)

    def job_ended(self, job: Job) -> None:
        """A job is over, or forgotten."""
        self.growth.job_ended(max(job.num_turns, 1))
        self._forecast.remove(job.job_id)

    def restored(self, pool_seconds: float) -> None:
        """Record the cost of restoring an evicted context, in pool-seconds."""
        self._discount.restored(self._host.clock(), pool_seconds)

    @property
    def idle_kv_weight(self) -> float:
        """Share of pinned KV that counts when a new job asks for memory."""
        return self._discount.idle_kv_weight

    def _demand(self, job: Job, num_blocks: float, *, is_idle: bool = False) -> JobDemand:
        """A job with that many blocks, the turns to come, the present one included, and the blocks
        that each adds."""
        turns_left = self.growth.turns_left(job) + 1.0
        added_blocks = self._costs.blocks_per_token.added_blocks(self.growth.tokens_per_turn(job))
        return JobDemand(num_blocks, turns_left, added_blocks, is_idle, job.prefix)

    # What the scheduler asks

    @property
    def has_running_turns(self) -> bool:
        """True if any turn of a job holds blocks."""
        return bool(self._admitted)

    def is_starved(self, request_id: str) -> bool:
        """True if a request was overtaken too often; also once it runs."""
        return self.guard.is_starved(request_id)

    def rank(self, request_id: str, *, is_preempted: bool) -> QueueRank | None:
        """Place in the waiting queue among the requests of its client; None for a request without a
        job, unless it is starved."""
        is_short = self._policy.pressure.is_on
        if is_short and self.is_starved(request_id):
            return (FIRST, *self._policy.starved_rank)
        turn = self._jobs.turns.get(request_id)
        if turn is None:
            return None
        is_pinned = self._pins.get(turn.job.job_id) is not None
        rank = self._policy.rank(turn, is_preempted=is_preempted, is_pinned=is_pinned)
        return (LAST if is_short and turn.is_held_back else IN_ORDER, *rank)

    def victim_rank(self, request_id: str) -> QueueRank | None:
        """Place among running requests, of which the largest is preempted first; None without a
        job, unless its client is above its share."""
        if self.is_starved(request_id):
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
        if turn is None or not num_running or self.is_starved(request_id):
            return True
        if not turn.is_first:
            return self._may_return(turn)
        if turn.job.has_run or not self._policy.has_admission_control:
            return True
        pool = self._host.pool
        num_blocks = self._costs.blocks_per_token.blocks(turn.num_prompt_tokens)
        newcomer = self._demand(turn.job, num_blocks)
        idle_weight = self._idle_weight_for(turn)
        if turn.has_aged_out:
            num_free_blocks += round((1.0 - idle_weight) * self._pins.num_blocks)
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
        return reason is None

    def _share_with_siblings(self, job: Job) -> None:
        """Let running jobs of the same prompt, a group's first one, know that others share it.

        Else its blocks would count as the first one's own, too, until its turn has ended. O(turns),
        once a job.
        """
        for turn in self._jobs.turns.values():
            other = turn.job
            is_sibling = other is not job and other.fingerprint == job.fingerprint
            if is_sibling and other.has_run and other.prefix is None:
                other.prefix = job.prefix
                self.kv_changed(other.job_id)

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
        if not turn.is_held_back:
            turn.is_held_back = True
            self._counters.add("holds_total")
            self._events.add(turn.job.job_id, "held", reason=reason)
            self._host.rank_changed(turn.job.job_id)

    def pins_to_take(self, request_id: str, request: AllocationRequest) -> Sequence[Pin[Any]]:
        """Pins that the policy gives up to an allocation that failed, in order."""
        num_tokens = request.missing_blocks * self._host.pool.block_tokens
        if request.turn is not None:
            num_tokens = request.turn.num_prompt_tokens
        self._memory_ran_short(num_tokens)
        if not len(self._pins):
            return []
        pins = self._pins.newest_first()
        if not self.shares.are_many:
            return self._policy.pins_that_yield(pins, request)
        return self._pins_of_clients(pins, request_id, request)

    def _pins_of_clients(
        self, pins: Sequence[Pin[Any]], request_id: str, request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Pins to give up where several clients hold or want KV: first what each client holds above
        its share, then those that the policy gives up.

        A waiting request of a client above its share takes none of a client that is not. One of a
        client that is not takes from all other clients once it has waited out the patience.
        """
        live, above = self.shares.get(request_id), self.shares.measure()
        client = "" if live is None else live.client
        if request.has_blocks or request.runs_alone:
            given = self._policy.pins_that_yield(pins, request)
            return sorted(given, key=lambda pin: pin.client not in above)
        if client in above:
            own = [pin for pin in pins if pin.client == client or pin.client in above]
            return self._policy.pins_that_yield(tuple(own), request)
        first = self.shares.surplus_pins(pins, client)
        patience_s = self._policy.settings.patience_s
        if live is not None and self._host.clock() - live.arrived_s > patience_s:
            first = [*first, *(pin for pin in pins if pin.client != client and pin not in first)]
        # Not the exclusive ones: those were counted when another request may have held them, too.
        missing_blocks = request.missing_blocks - sum(len(pin.blocks) for pin in first)
        if missing_blocks <= 0:
            return first
        chosen = set(map(id, first))
        rest = self._policy.pins_that_yield(
            tuple(pin for pin in pins if id(pin) not in chosen),
            replace(request, missing_blocks=missing_blocks),
        )
        return [*first, *rest] if rest else []

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
        """True for a while after something did not fit; of the rules only those between clients
        depend on it."""
        return self._host.clock() < self._short_until_s

    def _have_shares_changed(self) -> bool:
        """Take the clients that are above their share now for the ranks; True if others are."""
        before = self._above
        self._above = self.shares.measure()
        return self._above != before

    def _pressure_s(self, num_tokens: int) -> float:
        return self._policy.pressure_s(self._costs.cost(num_tokens))
