"""What a policy decides about when memory is short: who asks, for how much, and who is there."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ContinuumTTL

from ..settings import Settings
from .costs import Rebuild
from .forecast import Resident, Residents
from .jobs import Decision, Turn
from .pins import Pin


@dataclass(frozen=True, slots=True)
class Demand:
    """An allocation that failed; `turn` is None for a request without a job."""

    turn: Turn | None
    has_blocks: bool
    """It runs, or waits for more blocks than a tier has filled: until it ends nobody gets those."""
    num_running: int
    """Requests that have blocks, it included if it does."""
    missing_blocks: int
    is_due: bool = False
    """It was passed over as often as a newcomer ever is."""
    common_blocks: int = 0
    """Blocks of its own job's pin that it is going to use: to take them frees nothing."""

    @property
    def runs_alone(self) -> bool:
        """Whether nothing else runs that could make room by ending."""
        return self.num_running <= (1 if self.has_blocks else 0)


@dataclass(frozen=True, slots=True)
class Room:
    """The pool as a new job finds it; `newcomer` is what it will be itself, `idle_weight` the part
    of idle KV that is to count (see HoldBalance)."""

    num_blocks: int
    free_blocks: int
    newcomer: Resident
    residents: Residents
    idle_weight: float = 1.0


# MERGED: Whether memory is contended; while it is not, the policy leaves all as stock has it.


class Pressure:
    """On from the first allocation that fails until none has failed for some time."""

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._has_risen = False
        self.is_on = False

    def rise(self, now_s: float, lasting_s: float) -> bool:
        """Memory ran short: on for `lasting_s` from now; True if it was off."""
        self._until_s = max(self._until_s, now_s + lasting_s)
        self._has_risen = True
        was_on, self.is_on = self.is_on, True
        return not was_on

    def fall(self, now_s: float) -> bool:
        """Off if its time is over and no allocation has failed since this was asked last, however
        short that time is; True if it was on. Asked once a step."""
        has_risen, self._has_risen = self._has_risen, False
        if has_risen or not self.is_on or now_s < self._until_s:
            return False
        self.is_on = False
        return True


# MERGED: What a scheduling policy is asked, and the answer of one that has nothing to say.
# MERGED: Pure rules: no vLLM, no clock, no bookkeeping.

Rank = tuple[int, int, int]
"""A place in line, its tier first; the smallest is served first."""

PREEMPTED, PINNED, UNPINNED = 0, 1, 2
"""Tiers of the waiting queue. A request without a job is UNPINNED, and once preempted PREEMPTED."""


class Policy(ABC):
    """Rules over the jobs of one engine, whose KV pool has room for `pool_tokens`."""

    takes_tails = False
    """A pin that yields gives up no more blocks than needed, the last ones first; else all."""

    holds_back = False
    """New jobs may have to wait: `why_hold_back` says when."""

    due_rank: Rank = (PREEMPTED - 1, 0, 0)
    """Place of a newcomer that was passed over `most_passes` times: before all others to be served,
    behind them to be preempted."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        self.settings = settings
        self.pool_tokens = pool_tokens
        self.pressure = Pressure()
        self.learned = ContinuumTTL(settings.fixed_ttl_s, settings.cold_start_samples)
        """What was seen of tools, waits and lengths of jobs; the statistics have it in any case."""

    def capped(self, seconds: float, reason: str) -> TTL:
        """A TTL within `max_ttl_s`."""
        return TTL(min(seconds, self.settings.max_ttl_s), reason)

    @abstractmethod
    def undecided_ttl(self, rebuild: Rebuild) -> TTL:
        """TTL of a turn that has just finished, of whose tool nothing is known yet."""

    @abstractmethod
    def decide(
        self, command: str | None, rebuild: Rebuild, prediction: Prediction | None = None
    ) -> Decision:
        """What becomes of the pin of a turn that now runs `command` (None: not known)."""

    @abstractmethod
    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Place of a waiting turn; the smallest is served first."""

    @abstractmethod
    def victim_rank(self, turn: Turn) -> Rank:
        """Place of a running turn when memory runs out; the largest is preempted first."""

    @abstractmethod
    def sorts_running(self) -> bool:
        """Whether `victim_rank` decides who is preempted; else the last that was admitted is."""

    @abstractmethod
    def pins_that_yield(self, pins: Sequence[Pin[Any]], demand: Demand) -> Sequence[Pin[Any]]:
        """Of `pins`, newest job first, those to give up in order until an allocation succeeds."""

    def why_hold_back(self, room: Room) -> str | None:
        """Why a new job is not let in now; None to let it in."""
        return None

    def most_passes(self, num_turns: float) -> float:
        """How many later turns may go before a newcomer. `num_turns` is what the jobs that run or
        whose KV is held are expected to have together, over their whole lives."""
        return math.inf

    def pressure_s(self, rebuild: Rebuild) -> float:
        """How long memory counts as contended after it ran short of room for a context."""
        return math.inf
