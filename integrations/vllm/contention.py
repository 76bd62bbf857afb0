"""Who gets memory while it does not suffice for all: order, victims, pins that yield, new jobs.

Asks the policy and notes what it answers. Knows blocks only as numbers, and nothing of vLLM. Runs
on the engine's main thread; every call is O(log jobs), but pins that yield are sorted once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .counters import Counters
from .demand import Demand
from .gate import Gate
from .job_growth import JobGrowth
from .jobs import JobTable, Turn
from .newcomers import Newcomers
from .patience import Patience
from .pin_table import Pin, PinTable
from .policy import Policy, Rank
from .prices import Prices
from .record import TimestampRecord

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
