"""The `agentkv` policy: who goes first, what may be taken from whom, who is let in, who yields.

Pure rules: no vLLM, no clock, no bookkeeping; docs/policy.md has the reasons and what each rule is
worth. While memory is not contended, every rule but the hold time leaves all as stock has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, best_hold_s

from ..settings import MAX_PRIORITY, Settings
from .base import UNPINNED, Demand, Policy, Rank, Room
from .context_serve import READING_TTL_S
from .costs import Rebuild
from .jobs import Decision, Turn
from .pins import Pin

HELD_BACK = 2 * MAX_PRIORITY + 1
"""Tiers that a turn falls behind while its job is not let in."""
URGENT = UNPINNED - MAX_PRIORITY - 1
"""Tier before those of all priorities."""
PRESSURE_BREAK_EVENS = 10
"""Pressure lasts until no allocation has failed for so many times what the context that did not fit
is worth holding for. Tuned in the simulator: with 1, jobs that came first are overtaken whenever
memory suffices for a moment, and the longest waits are twice as long."""
LIFETIMES = 4
"""A newcomer is passed over by so many times the turns that all jobs that are there have together
from first to last. Each that ends makes room, so this takes jobs that do not end. Chosen: with 2
the first jobs of a server, of twice the turns that it assumes while none has ended, reach it."""


class AgentKVPolicy(Policy):
    """Our rules over one engine's jobs.

    1. A new job is let in once all that are there are expected to fit to their end.
    2. Idle KV is held for as long as that costs less than computing it anew, or loading it, where a
       tier has copies.
    3. If memory runs short all the same, jobs go in order of arrival, and a waiting turn takes idle
       KV only from jobs that arrived after its own, last blocks first. One that runs takes from
       all, so that no pin makes it fail; and so does a waiting one if nothing runs, so that the
       first in line always gets on: nothing can deadlock.
    4. A turn that goes on with its job is passed over for no longer than the patience: then it goes
       first and takes from all. A new job, and a request without one, is passed over no more often
       than `most_passes`: then it goes before all others, takes from all and is preempted last.
    """

    due_rank = (URGENT - 1, 0, 0)

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        super().__init__(settings, pool_tokens)
        without = settings.without
        self._has_order = "order" not in without
        self._has_protection = "protection" not in without
        self.holds_back = "admission" not in without
        self._has_prediction = "prediction" not in without
        self._has_balance = "balance" not in without
        self._has_patience = "patience" not in without
        self.takes_tails = "tails" not in without
        self._headroom = settings.headroom
        self._best_priority = 0
        if "switch" in without:
            self.pressure.rise(0.0, math.inf)

    def break_even_s(self, rebuild: Rebuild) -> float:
        """Seconds that holding a context may last before computing it anew would cost less.

        Holding n tokens takes n token-seconds of memory a second; computing them anew costs as much
        as to have the whole pool wait for `pool_s`.
        """
        return self.pool_tokens * rebuild.pool_s / max(rebuild.num_tokens, 1)

    def price_s(self, rebuild: Rebuild) -> float:
        """Seconds that holding a context may last before it would cost less to let it go.

        What is computed anew costs `break_even_s`; what a tier gives back, the seconds that loading
        takes, in which its memory is taken already.
        """
        anew_s = self.break_even_s(rebuild)
        return rebuild.loaded_share * rebuild.load_s + (1.0 - rebuild.loaded_share) * anew_s

    def pressure_s(self, rebuild: Rebuild) -> float:
        """How long memory counts as contended after it ran short."""
        return PRESSURE_BREAK_EVENS * self.break_even_s(rebuild)

    def undecided_ttl(self, rebuild: Rebuild) -> TTL:
        """TTL of a pin until its reply has been read, and if that runs nothing that is known."""
        seconds = max(self.price_s(rebuild), READING_TTL_S)
        return self.capped(seconds, "until holding costs as much as coming back")

    def decide(
        self, command: str | None, rebuild: Rebuild, prediction: Prediction | None = None
    ) -> Decision:
        """Hold until the expected cost of holding and of coming back is least."""
        price_s = self.price_s(rebuild)
        if command is None or prediction is None or not self._has_prediction:
            return Decision(self.undecided_ttl(rebuild), command)
        hold_s = best_hold_s(prediction.p_over, price_s)
        odds = f"P(longer) {prediction.p_over(hold_s):.2f}" if hold_s else "too long to hold for"
        worth = f"coming back is worth {price_s:.2f} s of holding"
        ttl = self.capped(hold_s, f"{odds}, {worth}")
        return Decision.predicted(command, prediction, ttl, is_from_now=False)

    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Under pressure by the job's arrival, client priority first; else stock's order.

        An overdue turn that goes on with its job comes before all others. One that opens a job
        counts as of the best priority. One whose job is held back stands behind all others.
        """
        self._best_priority = min(self._best_priority, turn.job.priority)
        if not (self.pressure.is_on and self._has_order):
            return (UNPINNED, turn.order, 0)
        if self._is_urgent(turn):
            return (URGENT, turn.job.order, turn.order)
        priority = self._best_priority if turn.is_overdue else turn.job.priority
        tier = HELD_BACK if turn.is_held_back else 0
        return (UNPINNED + priority + tier, turn.job.order, turn.order)

    def _is_urgent(self, turn: Turn) -> bool:
        return turn.is_overdue and not turn.is_first and self._has_patience

    def victim_rank(self, turn: Turn) -> Rank:
        """The least urgent, then the newest job is preempted first."""
        return (UNPINNED + turn.job.priority, turn.job.order, turn.order)

    def sorts_running(self) -> bool:
        """Without pressure stock's choice of a victim stands."""
        return self.pressure.is_on and self._has_order

    def pins_that_yield(self, pins: Sequence[Pin[Any]], demand: Demand) -> Sequence[Pin[Any]]:
        """Pins to take from, the newest job's first: all for a turn that runs or has blocks all the
        same, and if nothing runs.
        A waiting one takes from jobs that arrived after its own, or if it is overdue or due from
        all, and nothing if that would not be enough.
        """
        turn = demand.turn
        if demand.has_blocks or demand.runs_alone or not self._has_protection:
            return pins
        if not demand.is_due and turn is None:
            return []
        if turn is not None and not (demand.is_due or self._is_urgent(turn)):
            pins = [pin for pin in pins if pin.job_order >= turn.job.order]
        return pins if self._num_to_be_had(pins, demand) >= demand.missing_blocks else []

    def _num_to_be_had(self, pins: Sequence[Pin[Any]], demand: Demand) -> int:
        """Blocks that become free if all of these pins end."""
        own = None if demand.turn is None else demand.turn.job.job_id
        return sum(
            max(0, len(pin.blocks) - demand.common_blocks)
            if pin.job_id == own
            else pin.num_own_blocks
            for pin in pins
        )

    def most_passes(self, num_turns: float) -> float:
        """How many later turns may go before a newcomer. `num_turns` is what the jobs that run or
        whose KV is held are expected to have together, over their whole lives."""
        return LIFETIMES * num_turns if self._has_patience else math.inf

    def why_hold_back(self, room: Room) -> str | None:
        """Why a new job is not let in now; None to let it in.

        All jobs are expected to go on turn by turn, each growing until it ends; the most memory
        they take together at any time has to fit into the pool less the headroom. Idle KV counts in
        full only while coming back without it has cost more than holding it has.
        """
        if room.newcomer.num_blocks > room.free_blocks:
            return f"needs {room.newcomer.num_blocks:.0f} blocks, {room.free_blocks} are free"
        idle_weight = room.idle_weight if self._has_balance else 1.0
        peak_blocks = room.residents.peak_with(room.newcomer, idle_weight)
        if peak_blocks <= (1.0 - self._headroom) * room.num_blocks:
            return None
        reason = f"{peak_blocks:.0f} blocks expected at the peak, the pool has {room.num_blocks}"
        if self._headroom:
            reason += f", {self._headroom:.0%} of them headroom"
        if idle_weight != 1.0:
            reason += f"; idle KV counts by {idle_weight:.0%}"
        return reason
