"""Who gets memory while it does not suffice for all: order, victims, pins that yield, new jobs.

Asks the policy and notes what it answers. Knows blocks only as numbers, and nothing of vLLM. Runs
on the engine's main thread; every call is O(log jobs), but pins that yield are sorted once.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..policy.base import Demand, Policy, Rank, Room
from ..policy.costs import Footprint, Prices
from ..policy.forecast import JobGrowth, Resident, Residents
from ..policy.jobs import Job, JobTable, Turn
from ..policy.pins import Pin, PinTable
from ..telemetry.counters import Counters
from ..telemetry.event_log import TimestampRecord

BEHIND_AN_OVERDUE = "a job that came before it has waited for longer than the patience"


class Contention:
    """The requests of one engine that want memory or have it.

    `jobs` are the live ones, `turns` theirs by request, `pins` what they hold while tools run.
    `on_rank_change` hears of jobs whose waiting turns moved in the queue (None: of all).
    """

    def __init__(
        self,
        policy: Policy,
        jobs: JobTable,
        turns: Mapping[str, Turn],
        pins: PinTable[Any],
        gate: Gate,
        growth: JobGrowth,
        prices: Prices,
        counters: Counters,
        record: TimestampRecord,
        *,
        block_tokens: int,
        patience_s: float,
        clock: Callable[[], float],
        on_rank_change: Callable[[str | None], None],
    ) -> None:
        self.newcomers = Newcomers()
        self._policy = policy
        self._jobs = jobs
        self._turns = turns
        self._pins = pins
        self._gate = gate
        self._growth = growth
        self._prices = prices
        self._counters = counters
        self._record = record
        self._block_tokens = block_tokens
        self._patience = Patience(patience_s)
        self._clock = clock
        self._on_rank_change = on_rank_change
        self._admitted: set[str] = set()
        self._overdue_firsts: dict[str, int] = {}
        """First turns that have waited out the patience and wait still, with their arrival."""

    @property
    def has_running_turns(self) -> bool:
        """Whether any turn of a job has its blocks."""
        return bool(self._admitted)

    def request_arrived(self, request_id: str, order: int) -> None:
        """A request without a job waits from now on; it is number `order` of all."""
        self.newcomers.begin(request_id, order)

    def turn_arrived(self, turn: Turn) -> None:
        """A turn of a job waits from now on."""
        self._patience.begin(turn)
        if turn.is_first:
            self.newcomers.begin(turn.request_id, turn.order)
            if self._overdue_firsts:
                self._keep_out(turn)

    def admitted(self, request_id: str) -> None:
        """A request has its blocks."""
        turn = self._turns.get(request_id)
        if turn is None:
            self._goes_first(self.newcomers.order_of(request_id))
        elif turn.admitted_s is None and not turn.is_first:
            self._goes_first(turn.order)
        if turn is None or turn.is_first:
            self.newcomers.let_in(request_id)
        if turn is not None:
            self._admitted.add(request_id)
            self._leaves_the_line(turn)
            turn.is_overdue = False
            turn.job.has_run = True

    def load_began(self, turn: Turn) -> None:
        """A turn has its blocks, and runs once a tier has filled them. It is past the gate and
        counts there, even if the load fails: the engine asks for it before all that wait."""
        self._admitted.add(turn.request_id)
        self._leaves_the_line(turn)
        turn.job.has_run = True
        self.changed(turn.job.job_id)

    def preempted(self, request_id: str) -> None:
        """A request has lost its blocks, and waits again."""
        self._admitted.discard(request_id)

    def ended(self, request_id: str) -> None:
        """A request is over, whether it ever had its blocks or not; `turns` still has it."""
        self.newcomers.ended(request_id)
        self._admitted.discard(request_id)
        turn = self._turns.get(request_id)
        if turn is not None:
            self._leaves_the_line(turn)

    def _leaves_the_line(self, turn: Turn) -> None:
        self._gate.left(turn)
        self._overdue_firsts.pop(turn.request_id, None)

    def changed(self, job_id: str) -> None:
        """A job's KV on the GPU has changed."""
        if not self._policy.holds_back:
            return
        job = self._jobs.get(job_id)
        if job is None:
            self._gate.forget(job_id)
        else:
            self._gate.changed(job, self._admitted)

    def rank(self, request_id: str, *, is_preempted: bool) -> Rank | None:
        """Place in the waiting queue; None for a request without a job, unless it is due."""
        if self.newcomers.is_due(request_id) and self._policy.pressure.is_on:
            return self._policy.due_rank
        turn = self._turns.get(request_id)
        if turn is None:
            return None
        is_pinned = self._pins.get(turn.job.job_id) is not None
        return self._policy.rank(turn, is_preempted=is_preempted, is_pinned=is_pinned)

    def victim_rank(self, request_id: str) -> Rank | None:
        """Place among those that run, the largest is preempted first; None without a job."""
        if self.newcomers.is_due(request_id):
            return self._policy.due_rank
        turn = self._turns.get(request_id)
        return None if turn is None else self._policy.victim_rank(turn)

    def why_hold_back(
        self, request_id: str, *, num_running: int, num_free_blocks: int
    ) -> str | None:
        """Why a waiting turn gets no blocks yet; None if it may have them, as all may that do not
        open a job, and all while nothing runs."""
        turn = self._turns.get(request_id)
        if not self._policy.holds_back:
            return None
        if turn is None or not turn.is_first or turn.job.has_run:
            return None
        if self.newcomers.is_due(request_id):
            return None
        if not num_running:
            return None
        memory_s = self._shortage_s(turn.num_prompt_tokens)
        reason = self._gate.why_hold_back(turn, num_free_blocks, memory_s=memory_s)
        if reason is not None:
            self._note_shortage(turn.num_prompt_tokens)
            self._hold_back(turn, reason)
        return reason

    def _keep_out_later_jobs(self, turn: Turn) -> None:
        """A first turn is overdue: no job that came later is to be let in before it."""
        if not self._overdue_firsts:
            for other in self._turns.values():
                if other.is_first and not other.job.has_run and other.order > turn.order:
                    self._keep_out(other)
        self._overdue_firsts[turn.request_id] = turn.order

    def _keep_out(self, turn: Turn) -> None:
        """The turn opens a job that came after an overdue one; where all are let in, so is this."""
        if self._policy.holds_back:
            self._hold_back(turn, BEHIND_AN_OVERDUE)

    def _hold_back(self, turn: Turn, reason: str) -> None:
        if not turn.is_held_back:
            turn.is_held_back = True
            self._counters.add("holds_total")
            self._record.add(turn.job.job_id, "held", reason=reason)
            self._on_rank_change(turn.job.job_id)

    def memory_is_short(self, demand: Demand) -> Sequence[Pin[Any]]:
        """Pins the policy gives up, in order, to an allocation that failed."""
        num_tokens = demand.missing_blocks * self._block_tokens
        if demand.turn is not None:
            num_tokens = demand.turn.num_prompt_tokens
        self._note_shortage(num_tokens)
        if not len(self._pins):
            return []
        return self._policy.pins_that_yield(self._pins.newest_first(), demand)

    def _note_shortage(self, num_tokens: int) -> None:
        """Memory does not suffice for a context of so many tokens."""
        if self._policy.pressure.rise(self._clock(), self._shortage_s(num_tokens)):
            self._on_rank_change(None)

    def _shortage_s(self, num_tokens: int) -> float:
        return self._policy.pressure_s(self._prices.rebuild(num_tokens))

    def _goes_first(self, order: int | None) -> None:
        """Request number `order` has its blocks and opens no job; that may make a newcomer due."""
        if order is None or not self._policy.pressure.is_on:
            return
        num_there = max(1, len(self._admitted) + len(self._pins))
        most = self._policy.most_passes(self._growth.mean_turns * num_there)
        request_id = self.newcomers.passed(order, most)
        if request_id is None:
            return
        due = self._turns.get(request_id)
        if due is not None:
            self._record.add(due.job.job_id, "due", passed=round(most))
        self._on_rank_change(None if due is None else due.job.job_id)

    def step_begins(self) -> None:
        """Shortages end, and turns become overdue. O(1) if none does."""
        now_s = self._clock()
        if self._policy.pressure.fall(now_s):
            self._on_rank_change(None)
        while (turn := self._patience.pop_overdue(now_s)) is not None:
            turn.is_overdue = True
            self._on_rank_change(turn.job.job_id)
            if turn.is_first and not turn.job.has_run:
                self._keep_out_later_jobs(turn)


# MERGED: Lets new jobs in, as the policy says: what KV each job has, and what holding it is
# MERGED: worth.
# MERGED: Knows blocks only as numbers, and nothing of vLLM.


class Gate:
    """The pool as new jobs find it; a change is O(turns of the job), a question O(1)."""

    def __init__(
        self,
        policy: Policy,
        growth: JobGrowth,
        footprint: Footprint,
        pins: PinTable[Any],
        *,
        num_blocks: int,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._growth = growth
        self._footprint = footprint
        self._pins = pins
        self._num_blocks = num_blocks
        self._clock = clock
        self._residents = Residents()
        self._balance = HoldBalance()

    @property
    def idle_weight(self) -> float:
        """The part of idle KV that counts when a new job asks for room."""
        return self._balance.idle_weight

    def why_hold_back(self, turn: Turn, num_free_blocks: int, *, memory_s: float) -> str | None:
        """Why the turn's job is not let in now; None to let it in. `memory_s` is for how long a
        shortage counts."""
        newcomer = self._resident(turn.job, turn.num_prompt_tokens)
        room = Room(self._num_blocks, num_free_blocks, newcomer, self._residents, self.idle_weight)
        reason = self._policy.why_hold_back(room)
        self._balance.asked(
            self._clock(),
            is_held_back=reason is not None,
            idle_share=self._pins.num_blocks / self._num_blocks,
            memory_s=memory_s,
        )
        return reason

    def left(self, turn: Turn) -> None:
        """The turn is let in, or over."""
        if turn.is_held_back:
            turn.is_held_back = False
            self._balance.left()

    def came_back(self, seconds: float) -> None:
        """To have context again that had left the GPU took so many seconds of the whole pool."""
        self._balance.came_back(self._clock(), seconds)

    def changed(self, job: Job, admitted: Collection[str]) -> None:
        """A job's KV on the GPU is another than before; `admitted` are the requests that run."""
        prompts = [
            turn.num_prompt_tokens for turn in job.live.values() if turn.request_id in admitted
        ]
        pin = self._pins.get(job.job_id)
        if prompts:
            num_tokens = max(*prompts, job.context_tokens)
            self._residents.put(job.job_id, self._resident(job, num_tokens))
        elif pin is not None:
            idle = Resident(len(pin.blocks), *self._expected(job), is_idle=True)
            self._residents.put(job.job_id, idle)
        else:
            self.forget(job.job_id)

    def forget(self, job_id: str) -> None:
        """A job has no KV any more."""
        self._residents.drop(job_id)

    def _resident(self, job: Job, num_tokens: int) -> Resident:
        return Resident(self._footprint.blocks(num_tokens), *self._expected(job))

    def _expected(self, job: Job) -> tuple[float, float]:
        """Turns to come, the present one included, and blocks that each adds."""
        turns_left = self._growth.turns_left(job) + 1.0
        return turns_left, self._footprint.more_blocks(self._growth.tokens_per_turn(job))


# MERGED: Who waits to be let in, and how many turns that came later go before the first of
# MERGED: them.


class Newcomers:
    """Requests that open a job or have none: a line of those without blocks, in order of arrival,
    and those that are due, until they end. Every operation but `len` is O(1).
    """

    def __init__(self) -> None:
        self._orders: OrderedDict[str, int] = OrderedDict()
        self._due: set[str] = set()
        self._num_passes = 0

    def __len__(self) -> int:
        """How many are in line or due."""
        return len(self._orders.keys() | self._due)

    def begin(self, request_id: str, order: int) -> None:
        """A request arrives, as number `order` of all, and waits from now on."""
        self._orders[request_id] = order

    def order_of(self, request_id: str) -> int | None:
        """As number what it arrived; None if it is not in line."""
        return self._orders.get(request_id)

    def let_in(self, request_id: str) -> None:
        """It has its blocks."""
        if request_id == self._first:
            self._num_passes = 0
        self._leave_line(request_id)

    def ended(self, request_id: str) -> None:
        """It is over; if it has waited to the end, the next in line was passed over as often."""
        self._leave_line(request_id)
        self._due.discard(request_id)

    def _leave_line(self, request_id: str) -> None:
        self._orders.pop(request_id, None)
        if not self._orders:
            self._num_passes = 0

    @property
    def _first(self) -> str | None:
        return next(iter(self._orders), None)

    def passed(self, order: int, most: float) -> str | None:
        """Request number `order`, of a job that is there or of none, has its blocks. The first in
        line, if it is due from now on: more than `most` that came later went before it."""
        first = self._first
        if first is None or first in self._due or order <= self._orders[first]:
            return None
        self._num_passes += 1
        if self._num_passes <= most:
            return None
        self._due.add(first)
        return first

    def is_due(self, request_id: str) -> bool:
        """Whether it was passed over as often as one ever is; also once it has its blocks."""
        return request_id in self._due


# MERGED: Notices turns that have waited for too long; times in seconds on the caller's clock.


class Patience:
    """Turns in order of arrival until they first run; every operation is O(1), on average.

    A turn that is preempted later is not waited for anew: measured, going first each time let such
    turns take memory from each other (docs/results.md).
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._waiting: deque[Turn] = deque()

    def begin(self, turn: Turn) -> None:
        """A turn arrives and waits from now on."""
        self._waiting.append(turn)

    def pop_overdue(self, now_s: float) -> Turn | None:
        """A turn that still waits after `patience_s`, once; None if there is none."""
        while self._waiting and now_s - self._waiting[0].arrived_s > self._patience_s:
            turn = self._waiting.popleft()
            if turn.admitted_s is None and turn.request_id in turn.job.live:
                return turn
        return None


# MERGED: Whether holding idle KV pays: its cost beside that of having contexts again without
# MERGED: it.

PRIOR = 0.025
"""Of `memory_s`: so long is added to both sums, so that little of either decides nothing. With
`memory_s` ten break-even times that is a quarter of one: without it the first seconds decide, with
four times as much short jobs wait too long (docs/results.md)."""


class HoldBalance:
    """Two sums over time, both in seconds of the whole pool, and what they say about new jobs.

    One is memory that was held idle while a job waited to be let in; the other what it took to have
    contexts again that had left the GPU: to compute them what that is worth (see StepFit), to load
    them from a tier the memory that they are loaded into. The past counts less and less, by 1/e
    after `memory_s`. Every operation is O(1).
    """

    def __init__(self) -> None:
        self._held_s = 0.0
        self._back_s = 0.0
        self._memory_s = 0.0
        self._now_s = 0.0
        self._asked_s = 0.0
        self._is_held_back = False

    def asked(
        self, now_s: float, *, is_held_back: bool, idle_share: float, memory_s: float
    ) -> None:
        """A new job is let in or held back now; idle KV has `idle_share` of the pool, 0 to 1."""
        elapsed_s = now_s - self._asked_s
        self._memory_s = memory_s
        self._forget(now_s)
        if self._is_held_back:
            self._held_s += idle_share * elapsed_s
        self._asked_s = now_s
        self._is_held_back = is_held_back

    def left(self) -> None:
        """A job that was held back does not wait any more; whether others do, they say next."""
        self._is_held_back = False

    def came_back(self, now_s: float, seconds: float) -> None:
        """To have a context again that had left the GPU took so many seconds of the whole pool."""
        self._forget(now_s)
        self._back_s += seconds

    def _forget(self, now_s: float) -> None:
        kept = math.exp((self._now_s - now_s) / self._memory_s) if self._memory_s else 0.0
        self._back_s *= kept
        self._held_s *= kept
        self._now_s = now_s

    @property
    def idle_weight(self) -> float:
        """The part of idle KV that is to count when a new job asks for room, 0 to 1: what coming
        back has cost over what holding has, and all of it where that is more."""
        prior_s = PRIOR * self._memory_s
        held_s = self._held_s + prior_s
        return min(1.0, (self._back_s + prior_s) / held_s) if held_s else 1.0
