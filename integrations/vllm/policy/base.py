"""What a scheduling policy is asked, what it may answer, and the values it is shown.

Retention asks; the rules are pure: no vLLM, no clock, no bookkeeping.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentkv.durations import Prediction
from agentkv.durations.ttl import TTL, ContinuumTTL

from ..settings import Settings
from .costs import RestoreCost
from .forecast import JobDemand, KVDemandForecast
from .jobs import Decision, Turn
from .pins import Pin

Rank = tuple[int, int, int]
"""A place in the queue, its tier first; the smallest is served first."""

PREEMPTED, PINNED, UNPINNED = 0, 1, 2
"""Tiers of the waiting queue. A request without a job is UNPINNED, and once preempted PREEMPTED."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """An allocation that failed; `turn` is None for a request without a job."""

    turn: Turn | None
    has_blocks: bool
    """The request already holds blocks (running, or waiting after an external KV load), which
    cannot be reclaimed until it ends."""
    num_running: int
    """Requests that hold blocks, this one included if it does."""
    missing_blocks: int
    is_starved: bool = False
    """It has been overtaken `max_overtakes` times."""
    common_blocks: int = 0
    """Blocks of its own job's pin that it will use: taking them frees nothing."""

    @property
    def runs_alone(self) -> bool:
        """True if no other request runs, whose end would make room."""
        return self.num_running <= (1 if self.has_blocks else 0)


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A new job that asks for memory, and the pool as it finds it."""

    num_blocks: int
    free_blocks: int
    newcomer: JobDemand
    forecast: KVDemandForecast
    """The jobs that hold memory now."""
    idle_kv_weight: float = 1.0
    """Share of pinned KV that counts (see IdleKVDiscount)."""


class Pressure:
    """Whether memory is contended: from the first failed allocation until none fails for a while.

    While it is off, policies that look at it leave everything as stock has it.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._has_risen = False
        self.is_on = False

    def rise(self, now_s: float, lasting_s: float) -> bool:
        """An allocation failed: on for `lasting_s` from now; True if it was off."""
        self._until_s = max(self._until_s, now_s + lasting_s)
        self._has_risen = True
        was_on, self.is_on = self.is_on, True
        return not was_on

    def fall(self, now_s: float) -> bool:
        """Turn off once its time is over; True if it was on. Called once a step.

        It outlives the step in which an allocation failed, however short its time is.
        """
        has_risen, self._has_risen = self._has_risen, False
        if has_risen or not self.is_on or now_s < self._until_s:
            return False
        self.is_on = False
        return True


class Policy(ABC):
    """Rules over the jobs of one engine.

    Each method is called on the engine's main thread and must be pure: the answer depends on its
    arguments, `pressure` and `learned` only. An exception costs one request its pin, nothing else.
    """

    uses_predictions = False
    """Replies are read, and `decide` gets a Prediction. If False, only clients name commands."""

    allows_partial_eviction = False
    """A pin that yields gives up only the blocks needed, the last first. If False, all of them."""

    has_admission_control = False
    """New jobs may have to wait: `why_hold_back` is asked. If False, it never is."""

    starved_rank: Rank = (PREEMPTED - 1, 0, 0)
    """Place of a starved request (see `max_overtakes`), in the queue and among victims. Must sort
    before every answer of `rank` and `victim_rank`."""

    def __init__(self, settings: Settings, pool_tokens: int) -> None:
        """`pool_tokens` is the size of the engine's KV pool."""
        self.settings = settings
        self.pool_tokens = pool_tokens
        self.pressure = Pressure()
        self.learned = ContinuumTTL(settings.fixed_ttl_s, settings.cold_start_samples)
        """Tool durations, waits and job lengths seen; filled under every policy, for `/stats`."""

    def capped(self, seconds: float, reason: str) -> TTL:
        """A TTL of at most `max_ttl_s`."""
        return TTL(min(seconds, self.settings.max_ttl_s), reason)

    @abstractmethod
    def undecided_ttl(self, cost: RestoreCost) -> TTL:
        """TTL of a turn that has just finished and whose tool is not known yet.

        0 frees the turn at once, and `decide` is then never asked about it: a policy that uses
        predictions must answer with the time that reading the reply may take.
        """

    @abstractmethod
    def decide(
        self, command: str | None, cost: RestoreCost, prediction: Prediction | None = None
    ) -> Decision:
        """What becomes of the pin of a turn that now runs `command` (None: no tool, or not known).

        A TTL of 0 frees it at once. `prediction` is None without a command, and always if
        `uses_predictions` is False.
        """

    @abstractmethod
    def rank(self, turn: Turn, *, is_preempted: bool, is_pinned: bool) -> Rank:
        """Place of a waiting turn; the smallest is served first.

        Must be unique to the turn, and may change only with the arguments, `pressure` and what
        `rank` itself has seen.
        """

    @abstractmethod
    def victim_rank(self, turn: Turn) -> Rank:
        """Place of a running turn when memory runs out; the largest is preempted first.

        Must stay the same while the turn runs.
        """

    @abstractmethod
    def sorts_running(self) -> bool:
        """True if `victim_rank` decides who is preempted; False for stock's choice, the last
        request that was admitted."""

    @abstractmethod
    def pins_that_yield(
        self, pins: Sequence[Pin[Any]], request: AllocationRequest
    ) -> Sequence[Pin[Any]]:
        """Of `pins`, newest job first, those to give up in order until an allocation succeeds.

        Must be all of them, in any order, if `request.runs_alone`: nothing else could make room,
        and the engine would wait for ever.
        """

    def why_hold_back(self, request: AdmissionRequest) -> str | None:
        """Why a new job is not admitted now; None to admit it. Not asked while nothing runs."""
        return None

    def max_overtakes(self, num_turns: float) -> float:
        """Later turns that may be served before a new job or a request without a job; 0 or more.

        `num_turns` is the expected number of turns, from first to last, of all jobs that run or
        are pinned, together.
        """
        return math.inf

    def pressure_s(self, cost: RestoreCost) -> float:
        """Seconds for which memory counts as contended after a context of this cost did not fit.

        For ever unless a policy says less: its rules then hold from the first shortage on.
        """
        return math.inf
